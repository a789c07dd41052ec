#pragma once
// Shared by the transformers: sizes by name, the loss over tokens, kept or recomputed blocks.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/models/model.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// The sizes of a named model over tokens.
struct TokenSizes {
  std::string_view name;
  std::int64_t layers, heads, width, sequence, vocabulary;
  double dropout;
  std::int64_t key_heads = 0, hidden = 0;  ///< 0 if the family has no such size
};

/// The models with `key_heads` and `hidden`, for error messages.
inline constexpr const char* models_with_key_heads = "llama-*, qwen2.5-* and tiny-llama";

/// `options`, completed from the row `name` of `family`. key_heads scale with heads; the width inside a gated layer
/// scales with the width, rounded up to a multiple of 16. Throws ValueError: no such row of `kind`, heads that do not
/// divide the width, key_heads that do not divide the heads, dropout outside [0, 1), sizes of images or of other
/// families, a chunked head in the textbook build.
ModelOptions token_options(std::string_view kind, std::span<const TokenSizes> family, std::string_view name,
                           ModelOptions options);

/// Throws ValueError unless the heads divide the width, key_heads (if any) divide the heads, and dropout is in [0, 1);
/// and for a negative window, or a window or tiled feed-forward layers in the textbook build.
void require_transformer_sizes(std::string_view name, const ModelOptions& sizes);

/// `own`, a family's function, with the values that `function` sets. Throws ValueError, naming `name`, as
/// require_function does, and for an epsilon or theta that is not finite and above 0.
ModelFunction complete_function(std::string_view name, const ModelFunction& function, const ModelFunction& own);

/// This form of gelu as a product's epilogue.
constexpr kernels::Activation gelu_activation(GeluForm form) noexcept {
  return form == GeluForm::erf ? kernels::Activation::gelu_erf : kernels::Activation::gelu_tanh;
}

/// Mean cross-entropy of logits (B, T, V) and class numbers (B, T); targets of -100 do not count. The textbook build
/// keeps log-probabilities, the fused one logits.
Tensor token_loss(const Tensor& logits, const Tensor& targets, Build build);

/// token_loss(linear(x, weight, bias), targets) of x (B, T, C) and weight (V, C), some rows of logits at a time.
Tensor chunked_token_loss(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets);

/// The products of a feed-forward layer.
struct FeedForwardParts {
  const nn::Linear& up;
  const nn::Linear* gate;  ///< null for a plain layer
  const nn::Linear& down;
  kernels::Activation activation;  ///< between up and down, without a gate
  std::optional<DType> compute;    ///< dtype of the products
};

/// down(act(up(x))) or down(silu(gate(x)) up(x)) of x (B, T, C) in tiles of rows, never all inner activations. Throws
/// ValueError if one of the layers has an adapter, runs in FP8, or has a quantized weight.
Tensor tiled_feed_forward(const Tensor& x, const FeedForwardParts& parts);

/// Ids and targets (samples, sequence) i64, zeros booked as input. Throws ValueError unless samples >= 1.
Batch empty_token_batch(const ModelOptions& options, std::int64_t samples, memory::Device device);

/// Passes x through all blocks by run(block, x). `is_recomputed` runs each under checkpoint(), which keeps only its
/// input.
template <class Block, class Run>
Tensor through_blocks(const std::vector<Block*>& blocks, Tensor x, bool is_recomputed, const Run& run) {
  for (Block* block : blocks) {
    x = is_recomputed ? checkpoint([&](const Tensor& in) { return run(*block, in); }, x) : run(*block, x);
  }
  return x;
}

}  // namespace thimble::models
