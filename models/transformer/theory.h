#pragma once
// The bytes that one layer of a transformer keeps for backward, from its sizes alone, whichever family it belongs to.
//
// With s the sequence, b samples, h the width, a heads and e bytes for an element, the textbook build keeps for each
// layer what Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1) count, which at e = 2 is their sbh (34 + 5 a s /
// h), whether the norms stand before attention and mlp (GPT, ViT) or behind the additions (BERT):
//   with dropout      sbh (16 e + 2) + (2 e + 1) a s^2 b
//   without           16 e sbh + e a s^2 b: no masks, and softmax's result is what multiplies the values
//   recomputed        e sbh, the layer's result alone
// and besides, which they leave out, the statistics of two layer norms: 4 numbers for each position.
// The fused build keeps 16 e sbh and one number for each head and position in place of the a s^2 b terms.
//
// A layer's input is the result of what comes before it, so here each layer owns its result.

#include <cstdint>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/theory/term.h>

namespace thimble::models::theory {

/// Where the layer norms stand. pre: x + f(norm(x)); post: norm(x + f(x)).
enum class NormPlace : std::uint8_t { pre, post };

/// The sizes of one layer.
struct TransformerLayer {
  std::int64_t sequence = 0, width = 0, heads = 0;
  bool drops_probabilities = false;  ///< dropout on softmax's result
  bool drops_results = false;        ///< dropout on what attention and mlp add to the residual
  bool drops_gelu = false;           ///< dropout behind the gelu, as vision transformers have it
  NormPlace norms = NormPlace::pre;
  Build build = Build::fused;
};

/// A layer of a model over tokens of these sizes, which leave nothing open (models/transformer/transformer.h): dropout
/// is on probabilities and on results alike.
TransformerLayer token_layer(const ModelOptions& sizes, NormPlace norms);

/// What the layer keeps, in the order that a forward makes it, but for "norm statistics", which stands first. Terms of
/// either build: "qkv", "attention output", "gelu input", "gelu output", "layer output"; pre: "norm 1 output",
/// "residual" (norm 2's input), "norm 2 output"; post: "norm 1 input", "norm 1 output", "norm 2 input". Textbook:
/// "probabilities", and for dropout "probability mask", "dropped probabilities", "attention mask", "gelu mask", "mlp
/// mask" ("gelu output" is then the dropped one). Fused: "attention logsumexp". `dtype`: of parameters and activations
/// (statistics and logsumexp are f32, f64 for f64).
std::vector<Term> transformer_layer_kept(const TransformerLayer& layer, DType dtype);

/// What a layer keeps that runs under checkpoint(): "layer output".
std::vector<Term> recomputed_layer_kept(const TransformerLayer& layer, DType dtype);

/// The literature's figure for one layer, as above, without remainder; e = `element_bytes`.
constexpr std::int64_t transformer_layer_bytes(std::int64_t s, std::int64_t b, std::int64_t h, std::int64_t a,
                                               std::int64_t element_bytes, bool has_dropout) noexcept {
  const std::int64_t e = element_bytes;
  return has_dropout ? s * b * h * (16 * e + 2) + (2 * e + 1) * a * s * s * b : 16 * e * s * b * h + e * a * s * s * b;
}

}  // namespace thimble::models::theory
