#pragma once
// The feed-forward layer of a transformer without its inner activations.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// x (..., C) -> (..., O) through f inner numbers, over tiles of rows:
///   plain:  y = act(x up + up_bias) down + down_bias
///   gated:  y = (silu(x gate) (x up)) down, where `gate` is defined (Shazeer 2020, arXiv:2002.05202, equation 6)
/// up and gate are (f, C), down (O, f), or with `weight_is_in_out` (C, f) and (f, O); biases (f) and (O) may be
/// undefined, and must be in a gated layer. The inner results, (rows, f) each, never exist as a whole: all tiles share
/// one buffer, and backward recomputes a tile's results before it goes through it. Keeps x and the parameters, all of
/// them operands, and nothing else. Peak beside operands and results: 1 (plain) or 2 (gated) inner results of a tile in
/// forward; 3 or 4 in backward, for a gated layer also a tile of dx, and for 2-byte dtypes with several tiles the sums
/// of the weights' gradients in f32, which are rounded once.
///
/// Gradients of parameters are sums over tiles in ascending order.
///
/// Bits: y, dx and down_bias's gradient equal the layer built from Linear and SwiGlu, bit for bit; the gradients of the
/// weights and of up_bias do where one tile holds all rows.
///
/// Tiles over tokens: Bekman et al. 2025, "Arctic Long Sequence Training", arXiv:2506.13996, section 3.1 (TiledMLP).
/// Throws ShapeError, DTypeError, DeviceError; ValueError for tile_rows < 0, and a gate beside biases or an activation.
struct TiledFeedForward {
  static constexpr const char* name = "tiled_feed_forward";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, up, up_bias, gate, down;
    Shape x_shape;
  };
  kernels::Activation activation = kernels::Activation::none;  ///< only of a plain layer
  bool weight_is_in_out = false;
  std::int64_t tile_rows = 0;  ///< rows whose inner results are alive at a time; 0 derives it from the sizes
                               ///< (row_chunks.h)

  Tensor forward(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& gate, const Tensor& down,
                 const Tensor& down_bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  /// With n products in forward (2, gated 3) and n - 1 recomputed in backward (1, gated 2), a third of 3 n + (n - 1)
  /// for each: a planner that adds one product per operand to backward's time then has the right sum.
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
