#pragma once
// The loss head of a language model without its logits.

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// Cross entropy of x W^T + bias: x (N, C), weight (V, C), bias (V) or undefined, targets (N) i32 or i64; loss, ignored
/// rows and label smoothing as in CrossEntropy (core/ops/reduction/loss.h), reduced to their mean or sum. The logits
/// (N, V) never exist as a whole: rows are taken in chunks (chunk_rows_of), and all chunks' logits share one buffer.
///
/// Where operands need gradients, forward computes them, chunk by chunk, while the logits live: with p the softmax, s
/// the smoothing and n the rows that count,
///   g = (p - s / V - (1 - s) [v = t]) / n (not divided for sum; 0 in ignored rows), in place of the logits,
///   dx = g W,  dweight = sum over chunks, in order, of g^T x,  dbias = the same sum of the columns' sums of g.
/// Keeps these gradients, only of operands that need one, and nothing else; backward multiplies them by dy in place.
/// Without needs (evaluation, the first run of a closed segment) it computes only the loss. Peak beside operands and
/// kept gradients: one chunk of logits and one loss per row; for 2-byte dtypes with several chunks also dweight's and
/// dbias's sums in f32, which are rounded once.
///
/// Bits: the loss equals CrossEntropy over Linear, bit for bit, and for dy = 1 so does dx; dweight and dbias do where
/// one chunk holds all rows. In f16 the gradients are rounded before a loss scale multiplies them: the full head loses
/// less there.
///
/// Chunked heads: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989 (fused linear cross entropy). Throws ShapeError,
/// DTypeError, DeviceError, ValueError (smoothing outside [0, 1], reduction `none`, chunk_rows < 0; on a CPU: a target
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
  std::int64_t chunk_rows = 0;  ///< rows whose logits are alive at a time; 0: chunk_rows_of, on CUDA at least 2,048

  /// Rows of a chunk for logits (rows, classes): as many as the chunk's bytes allow; depends on nothing else.
  static std::int64_t chunk_rows_of(std::int64_t rows, std::int64_t classes, std::size_t element_bytes);

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  /// N V C, of the logits. Forward does as much again for each of dx and dweight that is needed; other operators do
  /// that in backward, so a planner that adds one product per operand to backward's time has the right sum.
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
