#pragma once
// Scaled dot-product attention that never forms the matrix of probabilities.

#include <cstddef>
#include <optional>

#include <thimble/core/ops/op.h>
#include <thimble/core/tensor/generator.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::ops {

/// out = dropout(softmax(scale q k^T)) v for every head, from one packed tensor: qkv (B, T, 3 C) -> (B, T, C), C = H D.
/// The last axis holds q, k and v, each (H, D): GPT-2's layout. Vaswani et al. 2017 (arXiv:1706.03762), section 3.2;
/// computed in tiles after Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4.
///
/// `scale` is 1 / sqrt(D) unless given. Query t sees
///   with `is_causal`   the keys s <= t
///   with `window` W    the keys with |t - s| < W (Beltagy et al. 2020, arXiv:2004.05150, section 3.1); 0 disables it
///   by a mask          in one of three forms:
///     boolean    of a shape that broadcasts to (B, H, T, S), S = T here: true, the query sees the key. Keys that are
///                padding are (B, 1, 1, S)
///     floating   likewise; it is added to scale q k^T, so -infinity hides. Not f8
///     i32        (B, S), ascending along a row, repeats included: documents packed side by side; a query sees the keys
///                of its document
/// and only keys that all of them show. A query that sees no key has the result 0, and gradients of 0. Keys that
/// windows or documents hide from a whole tile are skipped; so are, on the CPU, keys hidden by a boolean mask that is
/// equal for all queries. The mask has no gradient.
///
/// Probabilities are dropped with probability p in [0, 1) and the others divided by 1 - p: sample, element and mask are
/// as of Dropout with this site on the (B, H, T, T) probabilities. Any floating dtype; arithmetic in f32, f64 for f64.
/// (On CUDA devices f16 and bf16 use tensor cores in widths D of 16, 32, ..., 256: P and dS are rounded to that type
/// before their products. So does f32 up to 128 with TF32 on, core/launch/compute_capability.h: every factor of a
/// product is rounded to TF32.)
///
/// Backward: with P the probabilities, M the mask over 1 - p, dP = (dout v^T) M and delta_t = sum_d dout_td out_td: dv
/// = (P M)^T dout, dS = P (dP - delta), dq = scale dS k, dk = scale dS^T q. dqkv is one tensor; it reuses qkv's buffer
/// when qkv has no other holder.
///
/// Keeps qkv, out and lse = log sum_s exp(scale q k^T), (B, H, T) in f32 (f64 for f64): with e bytes for an element, (3
/// B T C + B T C) e + 4 B H T bytes and the mask, in place of the 2 e B H T^2 + B H T^2 of probabilities and mask.
/// Workspace per thread: forward a few tiles; backward 2 T D numbers more, with D rounded up to a multiple of the
/// microkernel's columns. Values of hidden keys must be finite.
///
/// Throws ShapeError, DTypeError, DeviceError; ValueError also for a mask that requires a gradient, and on the CPU for
/// documents that descend.
struct Attention {
  static constexpr const char* name = "attention";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor qkv, mask, out, lse;
  };
  std::int64_t heads = 1;
  bool is_causal = false;
  std::optional<double> scale = {};
  double p = 0;
  RandomSite site = {};
  std::int64_t window = 0;

  /// An undefined `mask` hides nothing.
  Tensor forward(const Tensor& qkv, const Tensor& mask, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

/// The same with three tensors, which may be views: q (B, T, H, D), k and v (B, S, G, D), S >= 1 -> (B, T, H, D). G
/// divides H, and head h reads keys and values h / (H / G) in place: grouped queries (Ainslie et al. 2023,
/// arXiv:2305.13245, section 2.2). dk and dv add up over the heads of a group in ascending order, in the compute type.
/// Query t is at the position of key t + (S - T): with `is_causal` it sees the keys up to that one, with a window the
/// keys less than W from it, with documents the keys of its document. All three need S >= T. Keeps q, k, v, the mask,
/// out and lse. Throws as Attention.
struct ScaledDotProductAttention {
  static constexpr const char* name = "scaled_dot_product_attention";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor q, k, v, mask, out, lse;
  };
  bool is_causal = false;
  std::optional<double> scale = {};
  double p = 0;
  RandomSite site = {};
  std::int64_t window = 0;

  /// An undefined `mask` hides nothing.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops

namespace thimble {

// ---- Attention of new positions over cached keys and values.

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
