#pragma once
// The bytes that training a GPT needs, from its sizes alone: no model is built and no tape is read. Tests hold these
// against what the ledger books, as integers.
//
// A layer is a transformer's with its norms before attention and mlp: models/transformer/theory.h has its formula.
// A layer's input is the result of what comes before it, so here each layer owns its result: the last one's is the
// final norm's input, and the embedding's is outside.

#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>
#include <thimble/models/transformer/theory.h>

namespace thimble::models::theory {

/// What one layer keeps for backward in a training forward over (N, options.sequence) ids, booked at and below
/// `gpt.h.I`: the terms of transformer_layer_kept, or of recomputed_layer_kept. Throws ValueError as
/// models::gpt_options does.
std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32,
                                 bool is_recomputed = false);

/// What is kept outside of the layers, until backward begins: "ids" and "targets" (input), "embedding output",
/// "final norm statistics", "head input"; textbook: with dropout "embedding mask", and "log-probabilities"; fused:
/// "logits" and "logsumexp".
std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes of a category that the whole model keeps for backward with a batch of `batch`, every layer kept or every layer
/// recomputed.
std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed = false);

/// Parameters V h + s h + L (12 h^2 + 13 h) + 2 h (the head is the token table), their gradients, and `moments` numbers
/// of optimizer state for each: 2 for Adam. Throws ValueError as gpt_options does, and for negative moments.
ModelState gpt_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 2,
                     DType dtype = DType::f32);

}  // namespace thimble::models::theory
