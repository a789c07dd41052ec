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
/// `scale` defaults to 1 / sqrt(D). Query t sees the keys s that satisfy all of
///   `is_causal`   s <= t
///   `window` W    |t - s| < W (Beltagy et al. 2020, arXiv:2004.05150, section 3.1), unless W is 0
///   a mask        in one of three forms:
///     boolean    broadcasts to (B, H, T, S), S = T here; true shows the key. A mask of padding is (B, 1, 1, S)
///     floating   broadcasts in the same way and is added to scale q k^T, so -infinity hides. Not f8
///     i32        (B, S), not descending along a row: numbers of packed documents; a query sees its document's keys
/// A query that sees no key has result 0 and gradients 0. Keys that windows or documents hide from a whole tile are
/// skipped; the CPU also skips keys that a boolean mask hides from all queries. The mask has no gradient.
///
/// Probabilities are dropped with probability p in [0, 1), and the others divided by 1 - p, exactly as Dropout with
/// this site drops the (B, H, T, T) probabilities. Any floating dtype; arithmetic in f32, f64 for f64. (On CUDA devices
/// f16 and bf16 use tensor cores in widths D of 16, 32, ..., 256: P and dS are rounded to that type before their
/// products. So does f32 up to 128 with TF32 on (core/launch/compute_capability.h), with every factor rounded to TF32.)
///
/// Backward: with P the probabilities, M the dropout mask over 1 - p, dP = (dout v^T) M and delta_t = sum_d dout_td
/// out_td: dv = (P M)^T dout, dS = P (dP - delta), dq = scale dS k, dk = scale dS^T q. dqkv is one tensor; it reuses
/// qkv's buffer if qkv has no other holder.
///
/// Keeps qkv, out and lse = log sum_s exp(scale q k^T), (B, H, T) in f32 (f64 for f64): with e bytes per element, (3
/// B T C + B T C) e + 4 B H T bytes and the mask, instead of 2 e B H T^2 + B H T^2 for probabilities and dropout mask.
/// Workspace per thread: forward a few tiles; backward 2 T D more numbers, with D rounded up to a multiple of the
/// microkernel's columns. Values of hidden keys must be finite.
///
/// Throws ShapeError, DTypeError, DeviceError; ValueError, also for a mask that requires a gradient, and on the CPU for
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

/// Attention of three tensors, which may be views: q (B, T, H, D), k and v (B, S, G, D), S >= 1 -> (B, T, H, D). G
/// divides H, and head h reads keys and values h / (H / G) in place: grouped queries (Ainslie et al. 2023,
/// arXiv:2305.13245, section 2.2). dk and dv are summed over the heads of a group in ascending order, in the compute
/// type. Query t is at the position of key t + (S - T), to which `is_causal`, the window and documents refer; they need
/// S >= T. Keeps q, k, v, the mask, out and lse. Throws as Attention.
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

/// Keys or values of all positions: (B, S, G, D), any strides, floating or i8, and a factor per row, f32 (B, S, G), or
/// undefined for 1.
struct CachedRows {
  Tensor values, scales;
};

namespace ops {

/// softmax(q k^T / sqrt(D)) v of the last T of S positions: q (B, T, H, D) -> (B, T, H, D), where query t sees the keys
/// s <= t + S - T, the last `window` of them unless that is 0, and head h reads keys and values h / (H / G). Nothing is
/// recorded or kept. Arithmetic is in f32, f64 for f64; rows in another dtype than q's are converted block by block in
/// the CPU's cache and multiplied by their factors.
///
/// A row of the result depends only on its query and the rows it sees: for rows of q's dtype, on the CPU, it has the
/// bits of this row in ScaledDotProductAttention over the whole window, for any T. (cuda/attention/attention.h has the
/// rule for CUDA devices.)
///
/// Throws as ScaledDotProductAttention; ShapeError or DTypeError for scales of another shape or dtype, and for scales
/// of rows in q's dtype; DeviceError for rows in another dtype than q's on a GPU.
Tensor cached_attention(const Tensor& q, const CachedRows& keys, const CachedRows& values, std::int64_t window = 0);

/// Bytes of its workspace with the current number of threads and any window: no other allocation depends on S.
std::size_t cached_attention_workspace(const Tensor& q, const CachedRows& keys);

}  // namespace ops

}  // namespace thimble
