#pragma once
// Keys and values of the positions that a decoder has read: the next position computes only its products, not the
// whole window's.
//
// Policy
// - The constructor allocates everything, booked as activation: reading a position allocates nothing more.
// - f64, f32, f16 and bf16 keep the numbers; a cache in the dtype that the model computes in changes no bit of a result
//   (core/ops/attention.h). i8, f8e4m3 and f8e5m2 keep codes, with an f32 scale for each position and head of keys and
//   of values (core/ops/quant/quantize.h: one block is a row of D).
// - In memory a head's rows are contiguous, (L, B, G, S, D): a step reads each head's rows in one stream.
//
// Terms
//   context   capacity in positions, S
//   length    positions that have been read

#include <cstddef>
#include <cstdint>

#include <thimble/core/ops/attention.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::nn {

struct KvCacheSizes {
  std::int64_t layers = 0, batch = 0, heads = 0, width = 0;  ///< L, B; G heads of keys and values, D numbers in each
  std::int64_t context = 0;                                  ///< S
  DType dtype = DType::f32;

  /// Whether the cache keeps codes, which have scales.
  bool has_scales() const noexcept { return size_of(dtype) == 1; }
  /// Per sequence: 2 L G D elements, plus 8 L G bytes of scales. 36,864 for gpt2 and 131,072 for llama-3-8b in 16 bits.
  std::size_t bytes_per_token() const noexcept;
  /// B S bytes_per_token().
  std::size_t bytes() const noexcept;
};

class KvCache {
 public:
  /// Throws ValueError for a size below 1, DTypeError for a dtype not listed above, OutOfMemory.
  KvCache(const KvCacheSizes& sizes, memory::Device device);

  const KvCacheSizes& sizes() const noexcept { return sizes_; }
  std::int64_t length() const noexcept { return length_; }

  /// Stores k and v (B, T, G, D) of `layer` at the positions from length() on and returns the attention (B, T, H, D) of
  /// their queries q (B, T, H, D) over them and all earlier positions, within `window` (ops::cached_attention). Throws
  /// ValueError when the context is full or the cache lacks the layer, ShapeError for other sizes, AutogradError while
  /// a tape records, and as ops::cached_attention.
  Tensor attend(std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t window = 0);
  /// Workspace of attend() for one position after length(), for queries of `heads` heads in `dtype`: a step's only
  /// allocation that depends on length().
  std::size_t step_workspace_bytes(std::int64_t heads, DType dtype) const;
  /// Adds `count` to length(), once every layer has stored its keys and values. Throws ValueError beyond the context.
  void advance(std::int64_t count);
  /// Resets length() to 0. Frees nothing.
  void clear() noexcept { length_ = 0; }

 private:
  struct Side {
    Tensor values, scales;  // (L, B, G, S, D), (L, B, G, S)
  };
  Side make_side(memory::Device device) const;
  void check(std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) const;
  void require_room(std::int64_t count) const;
  CachedRows seen(const Side& side, std::int64_t layer, std::int64_t end) const;
  void keep(const Side& side, std::int64_t layer, const Tensor& rows) const;

  KvCacheSizes sizes_;
  Side keys_, values_;
  std::int64_t length_ = 0;
};

/// One layer of a cache, for a decoder's block.
struct CachedLayer {
  KvCache& cache;
  std::int64_t layer;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t window = 0) const {
    return cache.attend(layer, q, k, v, window);
  }
};

}  // namespace thimble::nn
