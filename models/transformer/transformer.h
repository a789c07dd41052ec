#pragma once
// What the transformers share: sizes by name, the loss over tokens, blocks that are kept or recomputed.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/models/model.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// The sizes that a named model over tokens comes with.
struct TokenSizes {
  std::string_view name;
  std::int64_t layers, heads, width, sequence, vocabulary;
  double dropout;
  std::int64_t key_heads = 0, hidden = 0;  ///< 0: the family has no such size
};

/// The models with `key_heads` and `hidden`, for messages.
inline constexpr const char* models_with_key_heads = "llama-*, qwen2.5-* and tiny-llama";

/// `options` with what is left open taken from the row of `family` that is called `name`; heads of keys and the width
/// inside of a gated layer in proportion to heads and width, the latter rounded up to a multiple of 16. Throws
/// ValueError, naming `kind`: no such row, heads that do not divide the width, heads of keys that do not divide the
/// heads, a dropout outside of [0, 1), sizes of images or of other families, a chunked head in the textbook build.
ModelOptions token_options(std::string_view kind, std::span<const TokenSizes> family, std::string_view name,
                           ModelOptions options);

/// Throws ValueError unless the heads divide the width, heads of keys (where there are any) the heads, and the dropout
/// is in [0, 1), and for a window or feed-forward layers in tiles in the textbook build.
void require_transformer_sizes(std::string_view name, const ModelOptions& sizes);

/// `own`, a family's function, with what `function` replaces. Throws ValueError, naming `name`, as require_function
/// does, and for a value that is not finite and above 0.
ModelFunction complete_function(std::string_view name, const ModelFunction& function, const ModelFunction& own);

/// The epilogue of a product that is this form of gelu.
constexpr kernels::Activation gelu_activation(GeluForm form) noexcept {
  return form == GeluForm::erf ? kernels::Activation::gelu_erf : kernels::Activation::gelu_tanh;
}

/// Mean cross-entropy of logits (B, T, V) and class numbers (B, T); positions with target -100 do not count. The
/// textbook's form keeps log-probabilities, the fused one the logits.
Tensor token_loss(const Tensor& logits, const Tensor& targets, Build build);

/// token_loss(linear(x, weight, bias), targets) of x (B, T, C) and weight (V, C) by chunks of rows, without the logits.
Tensor chunked_token_loss(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets);

/// The products of a feed-forward layer.
struct FeedForwardParts {
  const nn::Linear& up;
  const nn::Linear* gate;  ///< null: there is none
  const nn::Linear& down;
  kernels::Activation activation;  ///< between up and down, without a gate
  std::optional<DType> compute;    ///< that products compute in
};

/// down(act(up(x))) or down(silu(gate(x)) up(x)) of x (B, T, C) by tiles of rows, without the inner activations of all
/// of them. Throws ValueError where one of the layers has an adapter, runs in FP8, or has a quantized weight.
Tensor tiled_feed_forward(const Tensor& x, const FeedForwardParts& parts);

/// Ids and targets (samples, sequence), zeros, booked as input.
Batch empty_token_batch(const ModelOptions& options, std::int64_t samples, memory::Device device);

/// x through all blocks by run(block, x), each under checkpoint() when `is_recomputed`: it then keeps its input alone.
template <class Block, class Run>
Tensor through_blocks(const std::vector<Block*>& blocks, Tensor x, bool is_recomputed, const Run& run) {
  for (Block* block : blocks) {
    x = is_recomputed ? checkpoint([&](const Tensor& in) { return run(*block, in); }, x) : run(*block, x);
  }
  return x;
}

}  // namespace thimble::models
