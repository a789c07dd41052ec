#pragma once
// The tensors that one layer of a transformer keeps for backward, in every family.
//
// With s the sequence, b samples, h the width, a heads and e bytes per element, the textbook build keeps per layer the
// bytes that Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1) count, at e = 2 sbh (34 + 5 a s / h), with norms
// before attention and mlp (GPT, ViT) or after the additions (BERT):
//   with dropout      sbh (16 e + 2) + (2 e + 1) a s^2 b
//   without           16 e sbh + e a s^2 b: no masks, and softmax's result multiplies the values
//   recomputed        e sbh, only the layer's result
// and, not counted in the paper, the statistics of two layer norms: 4 numbers per position.
// The fused build keeps 16 e sbh, and one number per head and position in place of the a s^2 b terms.
//
// With t shards (nn/parallel/shards.h) a rank has a shard of everything except the norms, the inputs of the layer's two
// halves and the masks on their results: with dropout, at e = 2, sbh (10 + 24 / t + 5 a s / (h t)) (section 4.2.1). If
// the sequence is sharded, too (dist/sharding/sequence.h), sbh (34 / t + 5 a s / (h t)) (section 4.2.2).
//
// A layer's input is the previous layer's result, so here each layer owns its result.

#include <cstdint>
#include <string>

#include <thimble/models/theory.h>

namespace thimble::models {

/// The place of layer norms. pre: x + f(norm(x)); post: norm(x + f(x)).
enum class NormPlace : std::uint8_t { pre, post };

/// The layers of one model.
struct TransformerLayers {
  std::string path;  ///< of a layer, without its number
  std::int64_t count = 0, sequence = 0, width = 0, heads = 0;
  std::int64_t readers = 1;          ///< products that read a layer's input: 1 if query, key and value are one product
  bool drops_probabilities = false;  ///< dropout on softmax's result
  bool drops_results = false;        ///< dropout on the results of attention and mlp
  bool drops_gelu = false;           ///< dropout after the gelu, in vision transformers
  NormPlace norms = NormPlace::pre;
  Build build = Build::fused;
  FeedForward feed_forward = FeedForward::full;
  dist::ShardGroup group = {};  ///< the shards of layers, and this rank's
};

/// Layers of a model over tokens with complete sizes (models/transformer/transformer.h). Dropout is on probabilities
/// and on results.
TransformerLayers token_layers(const char* path, const ModelOptions& sizes, NormPlace norms);

/// This rank's share of `all` elements between sharded layers: all, or its tokens' if the group shards the sequence.
std::int64_t own_stream(const dist::ShardGroup& group, std::int64_t all);

/// Whether the linear layers of blocks run in FP8: 16 must divide the width.
bool has_fp8_layers(const nn::Precision& precision, std::int64_t width);

/// Bytes of a product's state in FP8 with delayed scaling: an amax per operand, of 3, and step of the history, 3 scales
/// (f32), and 2 counts per operand (i64).
std::int64_t delayed_fp8_state_bytes(const nn::Fp8Recipe& recipe);

/// Adds the layers: 12 h^2 + 13 h parameters each, and the kept tensors in the order of the forward, except that "norm
/// statistics" come first. Terms of both builds: "qkv", "attention output", "gelu input", "gelu output", "layer
/// output"; pre: "norm 1 output", "residual" (norm 2's input), "norm 2 output"; post: "norm 1 input", "norm 1 output",
/// "norm 2 input". Textbook: "probabilities", and for dropout "probability mask", "dropped probabilities", "attention
/// mask", "gelu mask", "mlp mask" (then "gelu output" is the dropped one). Fused: "attention logsumexp".
///
/// Tiled feed-forward layers keep no "gelu input" and "gelu output", and have 4 h more elements of "weight casts", for
/// the first bias, which tiles read again in backward.
///
/// If products have a separate dtype, the inputs of norms have the parameters' dtype: "residual" and "layer output", or
/// "norm 1 input" and "norm 2 input". "weight casts" have 12 h^2 elements, whatever the batch.
///
/// FP8 keeps the inputs of a layer's products as codes of one byte (a post-norm layer's result as "layer output"; each
/// further reader of an input keeps "codes of other readers"), with "scales of codes": one per product, or a byte per
/// 128 elements of a row. Fused attention also keeps its whole result. With delayed scaling each product has a state in
/// buffers (delayed_fp8_state_bytes). If 16 does not divide h, everything is as under bf16. This holds for a step; a
/// recording without a Transaction also keeps the scales that it began with, 12 bytes per product with delayed scaling.
void add_layers(Theory& theory, const TransformerLayers& layers);

/// Adds parameters with one row per token, (V, width), or (V) without a width: the rows of this rank's shards.
void add_token_rows(Theory& theory, const ModelOptions& sizes, std::int64_t width = 0);

/// Adds the tensors that the loss over all tokens keeps, for this rank's shards of the vocabulary: textbook
/// "log-probabilities", fused "logits" and "logsumexp"; "targets".
void add_token_loss(TermList& kept, const ModelOptions& sizes);

}  // namespace thimble::models
