#pragma once
// What one layer of a transformer keeps for backward, whichever family it belongs to.
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
// In t parts (nn/parallel/shards.h) a rank has its own part of all but the norms, the inputs of the layer's
// two halves and the masks on their results: with dropout, at e = 2, sbh (10 + 24 / t + 5 a s / (h t)), as in their
// section 4.2.1; where the sequence is in parts, too (dist/parts/sequence.h), sbh (34 / t + 5 a s / (h t)), as in
// their section 4.2.2.
//
// A layer's input is the result of what comes before it, so here each layer owns its result.

#include <cstdint>
#include <string>

#include <thimble/models/theory.h>

namespace thimble::models {

/// Where the layer norms stand. pre: x + f(norm(x)); post: norm(x + f(x)).
enum class NormPlace : std::uint8_t { pre, post };

/// The layers of one model.
struct TransformerLayers {
  std::string path;  ///< of a layer, before its number
  std::int64_t count = 0, sequence = 0, width = 0, heads = 0;
  std::int64_t readers = 1;  ///< products that read a layer's input: 1 where query, key and value are one product
  bool drops_probabilities = false;  ///< dropout on softmax's result
  bool drops_results = false;        ///< dropout on what attention and mlp add to the residual
  bool drops_gelu = false;           ///< dropout behind the gelu, as vision transformers have it
  NormPlace norms = NormPlace::pre;
  Build build = Build::fused;
  FeedForward feed_forward = FeedForward::full;
  dist::Team team = {};  ///< how layers are cut, and which parts are here
};

/// Layers of a model over tokens of these sizes, which leave nothing open (models/transformer/transformer.h): dropout
/// is on probabilities and on results alike.
TransformerLayers token_layers(const char* path, const ModelOptions& sizes, NormPlace norms);

/// What of `all`, numbers between layers in parts, this rank has: its tokens', where the team cuts the sequence.
std::int64_t own_stream(const dist::Team& team, std::int64_t all);

/// Whether the linear layers of a transformer's blocks run in FP8: 16 divides the width.
bool has_fp8_layers(const nn::Precision& precision, std::int64_t width);

/// Bytes of the state that a product in FP8 has with delayed scaling: an amax for each of 3 operands and each step of
/// the history, 3 scales (f32), and 2 counts for each operand (i64).
std::int64_t delayed_fp8_state_bytes(const nn::Fp8Recipe& recipe);

/// Adds the layers: of each 12 h^2 + 13 h parameters, and what it keeps, in the order that a forward makes it, but for
/// "norm statistics", which stands first. Terms of either build: "qkv", "attention output", "gelu input", "gelu
/// output", "layer output"; pre: "norm 1 output", "residual" (norm 2's input), "norm 2 output"; post: "norm 1 input",
/// "norm 1 output", "norm 2 input". Textbook: "probabilities", and for dropout "probability mask", "dropped
/// probabilities", "attention mask", "gelu mask", "mlp mask" ("gelu output" is then the dropped one). Fused:
/// "attention logsumexp".
///
/// With feed-forward layers in tiles there are no "gelu input" and "gelu output", and "weight casts" have 4 h numbers
/// more: the first bias, which a tile is made again with.
///
/// Where products compute in a dtype of their own, the inputs of norms are of the parameters' dtype: "residual" and
/// "layer output", or "norm 1 input" and "norm 2 input". "weight casts" are 12 h^2 numbers whatever the batch.
///
/// Under FP8 the inputs of a layer's products are kept as codes, one byte a number (those of a post-norm layer's result
/// as "layer output"; each further reader keeps "codes of other readers"), with "scales of codes": one for each
/// product, or a byte for each row's 128 numbers. Attention in its fused form keeps its result whole besides. With
/// delayed scaling each product has a state in buffers: an amax for each of 3 operands and each step of the history, 3
/// scales (f32), and 2 counts for each operand (i64). Where 16 does not divide h all is as under bf16. A step keeps
/// this; a recording without a Transaction keeps also the scales it began with, 12 bytes for a product with delayed
/// scaling.
void add_layers(Theory& theory, const TransformerLayers& layers);

/// Parameters of one row for each token, (V, width), or (V) without a width: of each part that is here its rows.
void add_token_rows(Theory& theory, const ModelOptions& sizes, std::int64_t width = 0);

/// What the loss over all tokens keeps, of the parts of the vocabulary that are here: textbook "log-probabilities",
/// fused "logits" and "logsumexp"; "targets".
void add_token_loss(TermList& kept, const ModelOptions& sizes);

}  // namespace thimble::models
