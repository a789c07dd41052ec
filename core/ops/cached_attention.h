#pragma once
// Attention of new positions over cached keys and values.

#include <cstddef>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Keys or values of all positions: (B, S, G, D), any strides, floating or i8, and a factor for each row, f32 (B, S,
/// G), undefined for 1.
struct CachedRows {
  Tensor values, scales;
};

namespace ops {

/// softmax(q k^T / sqrt(D)) v of the last T of S positions: q (B, T, H, D) -> (B, T, H, D), where query t sees the keys
/// s <= t + S - T, limited to a `window` of positions (0: unlimited), and head h reads keys and values h / (H / G).
/// Nothing is recorded or kept. Arithmetic is in f32, f64 for f64; rows in another dtype than q's are converted in the
/// CPU's cache, block by block, and times their factor.
///
/// A row of the result depends only on its query and the rows it sees: for rows of q's dtype it has the bits of that
/// row of ScaledDotProductAttention over the whole window, for any T. (On the CPU; on CUDA devices as far as their
/// kernels allow, cuda/attention/attention.h.)
///
/// Throws as ScaledDotProductAttention; ShapeError, DTypeError for scales of another shape or dtype, and for scales of
/// rows in q's dtype; DeviceError for rows of another dtype than q's on a GPU.
Tensor cached_attention(const Tensor& q, const CachedRows& keys, const CachedRows& values, std::int64_t window = 0);

/// Bytes of its workspace on this thread's number of threads, with any window: all of its allocations that depend on S.
std::size_t cached_attention_workspace(const Tensor& q, const CachedRows& keys);

}  // namespace ops
}  // namespace thimble
