#pragma once
// Models over tokens: a table of tokens (V, C), blocks, and a head (V, C) that is the table or a linear layer.
//
//   ids ---- embed() ---- blocks ---- finish() ---- head ---- logits (B, T, V) ---- mean cross-entropy
//
// A stage of a pipeline has some of the blocks, the first one embed(), the last one finish() and the head.
//
// Of a model whose vocabulary is sharded (Shoeybi et al. 2019, arXiv:1909.08053, section 3) a rank has the logits of
// its own rows, never side by side with the others' (dist/parts/class_parts.h).

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
  /// Ids (B, T) i64, T at most options().sequence -> logits (B, T, V). Throws ShapeError; ValueError where the
  /// vocabulary or the sequence is sharded.
  Tensor forward(const Tensor& ids) final { return forward(ids, Tensor()); }
  /// The same where `mask` says what each token sees besides (AttentionOptions::mask). Positions count through.
  Tensor forward(const Tensor& ids, const Tensor& mask);
  Tensor loss(const Batch& batch) final;
  Batch empty_batch(std::int64_t samples, memory::Device device) const final;
  bool is_text() const noexcept final { return true; }
  bool has_stages() const noexcept final { return true; }
  bool can_cut_sequence() const noexcept final { return true; }
  SharedByStages shared_by_stages() final;
  void recompute_blocks(bool is_on = true) final { recomputes_blocks_ = is_on; }

 protected:
  /// Throws ValueError for more shards than tokens, a sequence that they do not divide, a chunked head in shards, and
  /// for shards without rules (with_shards).
  TokenModel(const ModelOptions& options, const nn::TensorOptions& on);

  /// Ids (B, T), which have the positions from `first` on -> (B, T, C).
  virtual Tensor embed(const Tensor& ids, std::int64_t first) = 0;
  /// What the last block gives (B, T, C) -> what the head reads.
  virtual Tensor finish(Tensor x) = 0;

  /// What makes scores: of each shard here a weight (V / t, C), and a bias (V / t) or none.
  struct HeadShards {
    std::vector<Tensor> weights, biases;
    const char* path = "head";
  };
  /// Puts them into `shards`, whose vectors are empty: the table's, unless the model has another head.
  virtual void find_head(HeadShards& shards) { find_tied_weights(shards.weights); }

  /// A head whose weight is in 8 bits (nn/quant/weight_only.h), for inference; null otherwise.
  virtual nn::Linear* quantized_head() { return nullptr; }

  /// The table of all tokens, on the first stage and, with a tied head, on the last one; null in between. On the last
  /// one of several it is the first one's, and stays here where parameters are shared out.
  void make_table(const std::string& name, const nn::TensorOptions& on, double deviation);
  /// A bias of the head, NAME.bias (V).
  std::vector<nn::Parameter*> make_head_bias(const std::string& name, const nn::TensorOptions& on);
  /// The blocks of this stage, made as B(args...) under hidden_layers() and their numbers.
  template <class B, class... Args>
  void make_blocks(const Args&... args) {
    const dist::StagePlace::Units own = options_.stage.units(options_.layers);
    for (std::int64_t i = own.first; i < own.end; ++i) {
      blocks_.push_back(&child<B>(std::string(hidden_layers()) + std::to_string(i), args...));
    }
  }
  bool has_embedding() const noexcept { return options_.stage.is_first(); }
  bool has_head() const noexcept { return options_.stage.is_last(); }
  /// Ids (B, T) -> (B, T, C).
  Tensor look_up(const Tensor& ids) { return (*table_)(ids); }
  /// x + rows (T, C).
  Tensor add_positions(const Tensor& x, const Tensor& rows) const;
  /// What the head reads (B, T, C) -> logits (B, T, V).
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
  HeadShards head_;  // its vectors keep their room, so that a steady step does not ask the heap
};

// ---- Models that give the tokens that come next, and can go on from where they have read to.

class Decoder : public TokenModel {
 public:
  /// What a cache of the model has, and the dtype in which it changes no bit; batch and context are the caller's.
  nn::KvCacheSizes cache_sizes() const;
  /// How many positions a sequence may have.
  virtual std::int64_t most_positions() const noexcept { return options_.sequence; }
  /// Reads ids (B, T), T >= 1, behind the positions that the cache has: it gets theirs, and the result are the logits
  /// (B, 1, V) of what comes after the last one, in evaluation mode those of forward() over the whole window, bit for
  /// bit, in the fused build and with a cache of cache_sizes().dtype. After an error the cache has the length it had.
  /// Throws ShapeError, ValueError where the context is full or blocks are in parts, and as
  /// nn::KvCache::attend.
  Tensor extend(const Tensor& ids, nn::KvCache& cache);

 protected:
  using TokenModel::TokenModel;

 private:
  void check_extension(const Tensor& ids, const nn::KvCache& cache) const;
};

}  // namespace thimble::models
