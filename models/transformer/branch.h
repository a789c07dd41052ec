#pragma once
// Blocks of transformers, and the branches that they add to their input, x + branch(norm(x)): attention and the
// feed-forward layer. A branch runs as a whole or shard by shard (nn/parallel/shards.h), with the widths of its layers.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <thimble/autograd/functions/attention.h>
#include <thimble/core/ops/elementwise/rotary.h>
#include <thimble/models/model.h>
#include <thimble/nn/generate/kv_cache.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/parallel/shards.h>

namespace thimble::models {

/// Inputs of attention other than x.
struct AttentionInputs {
  Tensor mask = {};                       ///< AttentionOptions::mask, or undefined
  const nn::CachedLayer* past = nullptr;  ///< keys and values of earlier positions, or null
};

class Branch : public nn::Module {
 public:
  /// x (B, T, C) -> (B, T, C). Takes x by value, so that it is freed as soon as it is read.
  Tensor operator()(Tensor x, const AttentionInputs& with = {});

 protected:
  explicit Branch(const nn::TensorOptions& on) : rules_(std::dynamic_pointer_cast<const nn::ShardRules>(on.rules)) {}
  virtual Tensor forward(Tensor x, const AttentionInputs& with) = 0;

 private:
  std::shared_ptr<const nn::ShardRules> rules_;  // null without shards
  const nn::RowParallelLinear* last_ = nullptr;  // of a sharded branch
};

/// A layer of a transformer, x (B, T, C) -> (B, T, C).
class TransformerBlock : public nn::Module {
 public:
  virtual Tensor operator()(const Tensor& x, const AttentionInputs& with) = 0;
};

struct SelfAttentionOptions {
  std::int64_t head_width = 0;
  bool is_causal = true;
  std::int64_t window = 0;  ///< AttentionOptions::window
  double dropout = 0;       ///< on probabilities, in training
  Build build = Build::fused;
  std::optional<RotaryPositions> rotary = {};
  const char* name = "";  ///< path below the branch
};

/// softmax(q k^T / sqrt(D)) v. The inputs' width determines the number of heads.
class SelfAttention final : public nn::Module {
 public:
  explicit SelfAttention(const SelfAttentionOptions& options) : options_(options) {}

  /// Concatenated queries, keys and values (B, T, 3 H D) -> (B, T, H D).
  Tensor operator()(const Tensor& qkv, const AttentionInputs& with);
  /// From heads() and turned(): (B, T, H, D), (B, T, G, D) twice -> (B, T, H D).
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionInputs& with);
  /// (B, T, H D) -> (B, T, H, D).
  Tensor heads(const Tensor& x) const;
  /// heads() with rotary positions.
  Tensor turned(const Tensor& x, const AttentionInputs& with) const;

  /// Runs over sharded tokens, exchanging heads (dist/sharding/sequence.h).
  void exchange_heads(const dist::ShardGroup& group) { group_ = group; }

 private:
  AttentionOptions attention_options(const AttentionInputs& with) const;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionInputs& with) const;

  SelfAttentionOptions options_;
  std::optional<dist::ShardGroup> group_;
};

struct MlpOptions {
  std::string up, down, gelu = "gelu";  ///< names of the children, and the path of a gelu that is no epilogue
  std::string dropout = {};             ///< name of the dropout after the gelu, if there is one
  nn::LinearOptions of_up = {}, of_down = {};
  GeluForm form = GeluForm::tanh;
};

/// down(gelu(up(x))), the feed-forward layer of GPT, BERT and ViT.
class GeluMlp final : public Branch {
 public:
  GeluMlp(const ModelOptions& sizes, const nn::TensorOptions& on, const MlpOptions& options);

 protected:
  Tensor forward(Tensor x, const AttentionInputs&) override;

 private:
  Build build_;
  FeedForward feed_forward_;
  MlpOptions options_;
  nn::Linear& up_;
  nn::Dropout* dropout_;
  nn::Linear& down_;
};

/// `on` with shard rules, if the group of `sizes` shards layers. Throws ValueError unless its shards divide the heads,
/// the key heads and, for sharded layers, the width inside the feed-forward layer; and for tiled feed-forward layers,
/// products in FP8 and coded weights, which cannot be sharded.
nn::TensorOptions with_shards(const nn::TensorOptions& on, const ModelOptions& sizes,
                              std::span<const nn::ShardedChild> table);
/// Completes the sharding of a model: layers without parameters, and layers with sharded tokens.
void finish_shards(Model& model, const nn::TensorOptions& on);

/// An M of `config`, with the children in `table` sharded over `sizes.group`.
template <class M, class Config>
std::unique_ptr<M> make_sharded(const Config& config, const ModelOptions& sizes, const nn::TensorOptions& on,
                                std::span<const nn::ShardedChild> table) {
  const nn::TensorOptions sharded = with_shards(on, sizes, table);
  auto model = std::make_unique<M>(config, sharded);
  finish_shards(*model, sharded);
  return model;
}
template <class M>
std::unique_ptr<M> make_sharded(const ModelOptions& sizes, const nn::TensorOptions& on,
                                std::span<const nn::ShardedChild> table) {
  return make_sharded<M>(sizes, sizes, on, table);
}

}  // namespace thimble::models
