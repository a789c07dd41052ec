#pragma once
// Keys and values of the positions that a decoder has read: the next position then costs its own products, not those of
// the whole window.
//
// Policy
// - All of it is allocated when it is made, and booked as activation: a position that is read takes no further byte.
// - f64, f32, f16 and bf16 keep the numbers; a cache of the dtype that the model computes in changes no bit of a result
//   (core/ops/attention.h). i8, f8e4m3 and f8e5m2 keep codes, with a scale in f32 for each position and head of
//   keys and of values (core/ops/quant/quantize.h: one block is a row of D).
// - In memory a head's rows lie one behind the other, (L, B, G, S, D): a step reads each head's in one stream.
//
// Terms
//   context   positions that there is room for, S
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

  /// Whether the dtype is one of codes, which have scales.
  bool has_scales() const noexcept { return size_of(dtype) == 1; }
  /// Of one sequence: 2 L G D bytes of an element, and with scales 8 L G more. 36,864 for gpt2 and 131,072 for
  /// llama-3-8b in 16 bits.
  std::size_t bytes_per_token() const noexcept;
  /// B S bytes_per_token().
  std::size_t bytes() const noexcept;
};

class KvCache {
 public:
  /// Throws ValueError for a size below 1, DTypeError for another dtype than those above, OutOfMemory.
  KvCache(const KvCacheSizes& sizes, memory::Device device);

  const KvCacheSizes& sizes() const noexcept { return sizes_; }
  std::int64_t length() const noexcept { return length_; }

  /// Keeps the k and v (B, T, G, D) of `layer` at the positions from length() on, and gives the attention of their
  /// queries q (B, T, H, D) over these and all before: (B, T, H, D). Throws ValueError where the context has no room
  /// or the cache has no such layer, ShapeError for other sizes, AutogradError while a tape records, and as
  /// ops::cached_attention, which says what a window is.
  Tensor attend(std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t window = 0);
  /// Workspace of attend() for one position after length(), for queries of `heads` heads in `dtype`: all that a step
  /// allocates that depends on length().
  std::size_t step_workspace_bytes(std::int64_t heads, DType dtype) const;
  /// Once all layers have kept theirs: `count` more positions have been read. Throws ValueError beyond the context.
  void advance(std::int64_t count);
  /// Nothing has been read. Frees nothing.
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

/// One layer's part of a cache, as a decoder's block gets it.
struct CachedLayer {
  KvCache& cache;
  std::int64_t layer;
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t window = 0) const {
    return cache.attend(layer, q, k, v, window);
  }
};

}  // namespace thimble::nn
