#pragma once
// The bytes that training a GPT needs, from its sizes alone: no model is built and no tape is read. Tests hold these
// against what the ledger books, as integers.
//
// With s the sequence, b samples, h the width, a heads, V the vocabulary and e bytes for an element, the textbook build
// keeps for each layer what Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1) count, which at e = 2 is their
// sbh (34 + 5 a s / h):
//   with dropout      sbh (16 e + 2) + (2 e + 1) a s^2 b
//   without           16 e sbh + e a s^2 b: no masks, and softmax's result is what multiplies the values
//   recomputed        e sbh, the layer's result alone
// and besides, which they leave out, the statistics of two layer norms: 4 numbers for each position.
// The fused build keeps 16 e sbh and one number for each head and position in place of the a s^2 b terms.
//
// A layer's input is the result of what comes before it, so here each layer owns its result: the last one's is the
// final norm's input, and the embedding's is outside.

#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

/// What one layer keeps for backward in a training forward over (N, options.sequence) ids, booked at and below
/// `gpt.h.I`, in the order that a forward makes it. Terms of either build: "norm 1 output", "qkv", "attention output",
/// "residual" (norm 2's input), "norm 2 output", "gelu input", "gelu output", "layer output", and the remainder
/// "norm statistics". Textbook: "probabilities", and with dropout "probability mask", "dropped probabilities",
/// "attention mask", "mlp mask". Fused: "attention logsumexp". `dtype`: of parameters and activations (statistics and
/// logsumexp are f32, f64 for f64). Throws ValueError as models::gpt_options does.
std::vector<Term> gpt_layer_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// What a layer keeps that runs under checkpoint(): "layer output".
std::vector<Term> gpt_recomputed_layer_kept(std::string_view name, const ModelOptions& options = {},
                                            DType dtype = DType::f32);

/// What is kept outside of the layers, until backward begins: "ids" and "targets" (input), "embedding output",
/// "final norm statistics", "head input"; textbook: with dropout "embedding mask", and "log-probabilities"; fused:
/// "logits" and "logsumexp".
std::vector<Term> gpt_outside_kept(std::string_view name, const ModelOptions& options = {}, DType dtype = DType::f32);

/// Bytes of a category that the whole model keeps for backward with a batch of `batch`, every layer kept or every layer
/// recomputed.
std::int64_t gpt_kept_bytes(std::string_view name, const ModelOptions& options, DType dtype, Category category,
                            std::int64_t batch, bool is_recomputed = false);

/// The literature's figure for one layer, as above, without remainder; e = `element_bytes`.
constexpr std::int64_t transformer_layer_bytes(std::int64_t s, std::int64_t b, std::int64_t h, std::int64_t a,
                                               std::int64_t element_bytes, bool has_dropout) noexcept {
  const std::int64_t e = element_bytes;
  return has_dropout ? s * b * h * (16 * e + 2) + (2 * e + 1) * a * s * s * b : 16 * e * s * b * h + e * a * s * s * b;
}

/// Parameters V h + s h + L (12 h^2 + 13 h) + 2 h (the head is the token table), their gradients, and `moments` numbers
/// of optimizer state for each: 2 for Adam. Throws ValueError as gpt_options does, and for negative moments.
ModelState gpt_state(std::string_view name, const ModelOptions& options = {}, std::int64_t moments = 2,
                     DType dtype = DType::f32);

}  // namespace thimble::models::theory
