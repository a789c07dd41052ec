#pragma once
// The bytes that training BERT needs, from its sizes alone: no model is built and no tape is read. Tests hold these
// against what the ledger books, as integers. A layer is a transformer's with its norms behind the additions:
// models/transformer/theory.h has its formula.

#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>
#include <thimble/models/transformer/theory.h>
#include <thimble/nn/precision/precision.h>

namespace thimble::models::theory {

/// What one layer keeps for backward in a training forward over (N, options.sequence) ids, booked at and below
/// `bert.bert.encoder.layer.I`: the terms of transformer_layer_kept, or of recomputed_layer_kept. Throws ValueError as
/// models::bert_options does.
std::vector<Term> bert_layer_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32,
                                  bool is_recomputed = false);

/// What is kept outside of the layers, until backward begins: "ids" and "targets" (input), "embedding sum",
/// "embedding norm statistics", "embedding output", the head's "gelu input", "gelu output", "head norm statistics",
/// "head input"; textbook: with dropout "embedding mask", and "log-probabilities"; fused: "logits" and "logsumexp".
std::vector<Term> bert_outside_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes of a category that the whole model keeps for backward with a batch of `batch`, every layer kept or every layer
/// recomputed.
std::int64_t bert_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                             std::int64_t batch, bool is_recomputed = false);

/// The same under a policy, every layer kept. Under FP8 each layer keeps the inputs of its four products as codes
/// (those of the result of what stands before it as "layer output"), attention's result in bf16 besides, and "encoder
/// output" is kept whole in place of "embedding output". Throws ValueError where products cast what they multiply (O1).
std::int64_t bert_kept_bytes(std::string_view name, const ModelOptions& options, const nn::Precision& precision,
                             Category category, std::int64_t batch);

/// Parameters (V + s + 2) h + 2 h + L (12 h^2 + 13 h) + h^2 + 3 h + V: tables and their norm, layers, the head's
/// transform with its norm, and its bias (its matrix is the table of words). Their gradients, and `moments` numbers of
/// optimizer state for each: 2 for Adam. Throws ValueError as bert_options does, and for negative moments.
ModelState bert_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 2,
                      DType dtype = DType::f32);

/// The same under a policy, whose norms (4 h a layer, 4 h outside) may be of another dtype than the rest; the state of
/// FP8 layers is in buffers.
ModelState bert_state(std::string_view name, const ModelOptions& options, std::int64_t moments,
                      const nn::Precision& precision);

}  // namespace thimble::models::theory
