#pragma once
// Models over tokens: a table of tokens (V, C), blocks, and a head (V, C) that is the table or a linear layer.
//
//   ids ---- embed() ---- blocks ---- finish() ---- head ---- logits (B, T, V) ---- mean cross-entropy
//
// A stage of a pipeline has some of the blocks; the first also has embed(), the last finish() and the head.
//
// With a sharded vocabulary (Shoeybi et al. 2019, arXiv:1909.08053, section 3) a rank has only the logits of its rows;
// they are never gathered (dist/sharding/loss.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/models/transformer/branch.h>
#include <thimble/nn/generate/kv_cache.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

class TokenModel : public Model {
 public:
  /// Ids (B, T) i64, T at most options().sequence -> logits (B, T, V). Throws ShapeError; ValueError if the vocabulary
  /// or the sequence is sharded.
  Tensor forward(const Tensor& ids) final { return forward(ids, Tensor()); }
  /// With a mask of attention (AttentionOptions::mask). Positions do not restart at documents.
  Tensor forward(const Tensor& ids, const Tensor& mask);
  Tensor loss(const Batch& batch) final;
  Batch empty_batch(std::int64_t samples, memory::Device device) const final;
  bool is_text() const noexcept final { return true; }
  bool has_stages() const noexcept final { return true; }
  bool can_cut_sequence() const noexcept final { return true; }
  SharedByStages shared_by_stages() final;
  void recompute_blocks(bool is_on = true) final { recomputes_blocks_ = is_on; }

 protected:
  /// Throws ValueError for more shards than tokens, a sequence that they do not divide, a chunked head with shards, a
  /// textbook build with whole layers over a sharded sequence, and shards without rules (with_shards).
  TokenModel(const ModelOptions& options, const nn::TensorOptions& on);

  /// Ids (B, T) at positions from `first` on -> (B, T, C).
  virtual Tensor embed(const Tensor& ids, std::int64_t first) = 0;
  /// The last block's result (B, T, C) -> the head's input.
  virtual Tensor finish(Tensor x) = 0;

  /// The head's weight (V / t, C) and optional bias (V / t), for each shard of this rank.
  struct HeadShards {
    std::vector<Tensor> weights, biases;
    const char* path = "head";
  };
  /// Fills in `shards`, whose vectors are empty, by default with the table's weights.
  virtual void find_head(HeadShards& shards) { find_tied_weights(shards.weights); }

  /// A head with an 8-bit weight (nn/quant/weight_only.h), for inference, or null.
  virtual nn::Linear* quantized_head() { return nullptr; }

  /// Makes the token table on the first stage and, with a tied head, on the last. On the last of several stages it is a
  /// copy of the first stage's, and in no parameter store.
  void make_table(const std::string& name, const nn::TensorOptions& on, double deviation);
  /// The head's bias, NAME.bias (V).
  std::vector<nn::Parameter*> make_head_bias(const std::string& name, const nn::TensorOptions& on);
  /// Makes this stage's blocks as B(args...), named hidden_layers() and their number.
  template <class B, class... Args>
  void make_blocks(const Args&... args) {
    const dist::StagePlace::Units own = options_.stage.units(options_.layers);
    for (std::int64_t i = own.first; i < own.end; ++i) {
      blocks_.push_back(&child<B>(std::string(hidden_layers()) + std::to_string(i), args...));
    }
  }
  bool has_embedding() const noexcept { return options_.stage.is_first(); }
  /// Ids (B, T) -> (B, T, C).
  Tensor look_up(const Tensor& ids) { return (*table_)(ids); }
  /// x + rows (T, C).
  Tensor add_positions(const Tensor& x, const Tensor& rows) const;
  /// The head's input (B, T, C) -> logits (B, T, V).
  Tensor logits(const Tensor& x);
  DType table_dtype() const;
  nn::Embedding* table_ = nullptr;
  std::vector<TransformerBlock*> blocks_;
  std::optional<DType> compute_;

 private:
  Tensor features(const Tensor& in, const AttentionInputs& with);
  void find_tied_weights(std::vector<Tensor>& weights);
  const HeadShards& head();

  bool recomputes_blocks_ = false;
  std::vector<Tensor> aliases_;
  HeadShards head_;  // its vectors keep their capacity: a steady step allocates nothing on the heap
};

// ---- Models that predict next tokens, and continue a sequence from a cache.

class Decoder : public TokenModel {
 public:
  /// Sizes of the model's cache, and the dtype in which it changes no bit; the caller sets batch and context.
  nn::KvCacheSizes cache_sizes() const;
  /// The most positions that a sequence may have.
  virtual std::int64_t most_positions() const noexcept { return options_.sequence; }
  /// Reads ids (B, T), T >= 1, after the positions in the cache, and adds theirs. Returns the logits (B, 1, V) for the
  /// token after the last: in evaluation mode, in the fused build and with a cache of cache_sizes().dtype, they equal
  /// forward()'s over the whole sequence bit for bit. An error leaves the cache's length as it was. Throws ShapeError,
  /// ValueError if the context is full or blocks are sharded, and as nn::KvCache::attend does.
  Tensor extend(const Tensor& ids, nn::KvCache& cache);

 protected:
  using TokenModel::TokenModel;

 private:
  void check_extension(const Tensor& ids, const nn::KvCache& cache) const;
};

}  // namespace thimble::models
