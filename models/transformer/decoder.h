#pragma once
// Models that give the tokens that come next, and can go on from where they have read to.

#include <cstdint>

#include <thimble/models/transformer/token_model.h>
#include <thimble/nn/generate/kv_cache.h>

namespace thimble::models {

class Decoder : public TokenModel {
 public:
  /// What a cache of the model has, and the dtype in which it changes no bit; batch and context are the caller's.
  virtual nn::KvCacheSizes cache_sizes() const = 0;
  /// How many positions a sequence may have.
  virtual std::int64_t most_positions() const noexcept = 0;
  /// Reads ids (B, T), T >= 1, behind the positions that the cache has: it gets theirs, and the result are the logits
  /// (B, 1, V) of what comes after the last one, in evaluation mode those of forward() over the whole window, bit for
  /// bit, in the fused build and with a cache of cache_sizes().dtype. After an error the cache has the length it had.
  /// Throws ShapeError, ValueError where the context is full or blocks are in parts, and as
  /// nn::KvCache::attend.
  virtual Tensor extend(const Tensor& ids, nn::KvCache& cache) = 0;

 protected:
  using TokenModel::TokenModel;
  /// The position behind the last one. Throws ShapeError, ValueError, as extend().
  std::int64_t check_extension(const char* name, const Tensor& ids, const nn::KvCache& cache) const;
};

/// The dtype of a cache that keeps rows of `dtype` as they are: `dtype`, or f16, which has all values of 8-bit floats.
constexpr DType whole_cache_dtype(DType dtype) noexcept { return size_of(dtype) == 1 ? DType::f16 : dtype; }

/// (B, T, C) -> the last position, (B, 1, C).
Tensor last_position(const Tensor& x);

}  // namespace thimble::models
