#pragma once
// The bytes that training a vision transformer needs, from its sizes alone: no model is built and no tape is read.
// Tests hold these against what the ledger books, as integers. A layer is a transformer's over s = (image / 16)^2 + 1
// tokens with its norms before attention and mlp: models/transformer/theory.h has its formula.

#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>
#include <thimble/models/transformer/theory.h>

namespace thimble::models::theory {

/// What one layer keeps for backward in a training forward, booked at and below `vit.encoder.layers.encoder_layer_I`:
/// the terms of transformer_layer_kept, or of recomputed_layer_kept. `is_last`: of the last layer, whose "layer output"
/// the fused build does not keep. Throws ValueError as models::vit_options does.
std::vector<Term> vit_layer_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32,
                                 bool is_last = false, bool is_recomputed = false);

/// What is kept outside of the layers, until backward begins: "images" and "targets" (input), "embedding output",
/// "final norm statistics", "head input" (textbook: the final norm's result for all tokens; fused: for the class
/// tokens, and "class rows", the norm's input), "logits", "logsumexp"; textbook, with dropout: "embedding mask".
std::vector<Term> vit_outside_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes of a category that the whole model keeps for backward with a batch of `batch`, every layer kept or every layer
/// recomputed.
std::int64_t vit_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed = false);

/// Parameters 256 c h + h + h + s h + L (12 h^2 + 13 h) + 2 h + (h + 1) K for c channels and K classes: patches, class
/// token, positions, layers, final norm, head. Their gradients, and `moments` numbers of optimizer state for each: 1
/// for SGD with momentum. Throws ValueError as vit_options does, and for negative moments.
ModelState vit_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 1,
                     DType dtype = DType::f32);

}  // namespace thimble::models::theory
