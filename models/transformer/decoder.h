#pragma once
// Models that give the tokens that come next, and can go on from where they have read to.

#include <cstdint>

#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/generate/kv_cache.h>

namespace thimble::models {

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
