#pragma once

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::ops {

// ---- Products over chunks of rows, with one chunk's inner results alive at a time: number of rows, and sums over
// chunks.

/// Rows of a chunk whose inner results take `numbers` elements per row: 16 MiB, but at least 128 rows, because products
/// read their whole weights once per chunk, and at least a 32nd of `rows`, so that a step's requests do not grow with
/// its rows; at most `rows`, at least 1.
std::int64_t chunk_rows_of(std::int64_t rows, std::int64_t numbers, std::size_t element_bytes);

/// chunk_rows_of for a device: on CUDA at least 2,048, because products of few rows do not fill it. `asked` > 0
/// overrides it. Throws ValueError, naming `operation`, for asked < 0.
std::int64_t chunk_rows_on(const char* operation, memory::Device device, std::int64_t asked, std::int64_t rows,
                           std::int64_t numbers, std::size_t element_bytes);

/// A sum over chunks; in f32 for narrow dtypes if there are several chunks.
struct ChunkSum {
  Tensor sum;
  DType dtype;

  /// Zeros without chunks, undefined values otherwise.
  ChunkSum(const Shape& shape, const Tensor& like, std::int64_t chunks);
  /// The sum in the operands' dtype, rounded once.
  Tensor rounded() const;
};

// ---- The loss head of a language model without its logits.

/// Cross entropy of x W^T + bias: x (N, C), weight (V, C), bias (V) or undefined, targets (N) i32 or i64; loss, ignored
/// rows and label smoothing as in CrossEntropy (core/ops/reduction/loss.h), reduced to their mean or sum. The logits
/// (N, V) never exist as a whole: rows are taken in chunks (chunk_rows_of), and all chunks' logits share one buffer.
///
/// Forward computes the gradients that operands need, chunk by chunk, while the logits live: with p the softmax, s the
/// smoothing and n the number of rows that count,
///   g = (p - s / V - (1 - s) [v = t]) / n (not divided for sum; 0 in ignored rows), in place of the logits,
///   dx = g W,  dweight = sum over chunks, in order, of g^T x,  dbias = sum over chunks, in order, of g's columns.
/// Keeps only these gradients; backward multiplies them by dy in place. Without needs (evaluation, the first run of a
/// closed segment) it computes only the loss. Peak besides operands and kept gradients: one chunk of logits and one
/// loss per row; for 2-byte dtypes with several chunks also dweight's and dbias's sums in f32, which are rounded once.
///
/// Bits: the loss equals CrossEntropy over Linear, and for dy = 1 so does dx; dweight and dbias do if one chunk holds
/// all rows. In f16 the gradients are rounded before a loss scale multiplies them, which loses more than the full head.
///
/// Chunked heads: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989 (fused linear cross entropy). Throws ShapeError,
/// DTypeError, DeviceError, ValueError (smoothing outside [0, 1], reduction `none`, chunk_rows < 0; on a CPU, a target
/// that is no class).
struct LinearCrossEntropy {
  static constexpr const char* name = "linear_cross_entropy";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor dx, dweight, dbias;
  };
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  kernels::LossReduction reduction = kernels::LossReduction::mean;
  std::int64_t chunk_rows = 0;  ///< rows whose logits are alive at a time; 0 means chunk_rows_on's default

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  /// N V C, of the logits. Forward also computes dx and dweight if needed, N V C each. Other operators do that in
  /// backward, so a planner that adds one product per operand to backward's time has the right sum.
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

// ---- The feed-forward layer of a transformer without its inner activations.

/// x (..., C) -> (..., O) through f inner numbers, over tiles of rows:
///   plain:  y = act(x up + up_bias) down + down_bias
///   gated:  y = (silu(x gate) (x up)) down, if `gate` is defined (Shazeer 2020, arXiv:2002.05202, equation 6)
/// up and gate are (f, C), down (O, f), or with `weight_is_in_out` (C, f) and (f, O); biases are (f) and (O), or
/// undefined; a gated layer has none. The inner results, (rows, f) each, never exist as a whole: all tiles share one
/// buffer, and backward recomputes each tile's. Keeps only x and the parameters, all of them operands. Peak besides
/// operands and results: 1 (plain) or 2 (gated) inner results of a tile in forward; 3 or 4 in backward, for a gated
/// layer also a tile of dx, and for 2-byte dtypes with several tiles the sums of the weights' gradients in f32, which
/// are rounded once.
///
/// Gradients of parameters are sums over tiles in ascending order.
///
/// Bits: y, dx and down_bias's gradient equal the layer built from Linear and SwiGlu; the gradients of the weights and
/// of up_bias do if one tile holds all rows.
///
/// Tiles over tokens: Bekman et al. 2025, "Arctic Long Sequence Training", arXiv:2506.13996, section 3.1 (TiledMLP).
/// Throws ShapeError, DTypeError, DeviceError; ValueError for tile_rows < 0, and a gate with biases or an activation.
struct TiledFeedForward {
  static constexpr const char* name = "tiled_feed_forward";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, up, up_bias, gate, down;
    Shape x_shape;
  };
  kernels::Activation activation = kernels::Activation::none;  ///< only for a plain layer
  bool weight_is_in_out = false;
  std::int64_t tile_rows = 0;  ///< rows whose inner results are alive at a time; 0 means chunk_rows_on's default

  Tensor forward(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& gate, const Tensor& down,
                 const Tensor& down_bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  /// A third of 3 n + (n - 1) products, where forward has n (2, gated 3) and backward recomputes n - 1: a planner that
  /// adds one product per operand to backward's time then has the right sum.
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
