#pragma once
// Losses. The operators in core/ops/reduction/loss.h have the formulas and the tensors kept for backward. A loss is f32
// (f64 for f64).

#include <thimble/core/ops/reduction/loss.h>

namespace thimble {

/// Mean over the rows that count, sum, or one loss per row (per element for mse_loss).
using LossReduction = ops::LossReduction;

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  ///< rows with this target do not count
  double label_smoothing = 0;        ///< in [0, 1]
  LossReduction reduction = LossReduction::mean;
};

/// Cross entropy of logits (..., C) and class numbers (...) in i32 or i64. Keeps the logits by reference and one number
/// per row; log-probabilities are never stored. The mean is over the rows that are not ignored: NaN when all are.
/// Throws ShapeError, DTypeError, DeviceError, ValueError (label smoothing; on a CPU: a target that is no class, naming
/// its row).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(linear(x, weight, bias), targets) without the logits: x (N, C), weight (V, C), targets (N), bias (V)
/// or undefined. Rows are taken in chunks, and forward computes the gradients: it keeps the needed ones of x (N, C),
/// weight (V, C) and bias (core/ops/matmul/linear_cross_entropy.h, with the bits that are equal). Reduction: mean or
/// sum. Throws ShapeError, DTypeError, DeviceError, ValueError.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, const Tensor& bias = {});

/// The textbook form, nll(log_softmax(logits)), which keeps the log-probabilities (..., C): for comparison.
Tensor cross_entropy_textbook(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// Negative log-likelihood of log-probabilities (..., C). Keeps only the targets.
Tensor nll(const Tensor& log_probabilities, const Tensor& targets, const CrossEntropyOptions& options = {});

/// (x - target)^2, reduced over all elements (`none`: not reduced, in x's dtype). Both may take a gradient, both are
/// kept by reference. Throws ShapeError unless the shapes are equal, DTypeError, DeviceError.
Tensor mse_loss(const Tensor& x, const Tensor& target, LossReduction reduction = LossReduction::mean);

}  // namespace thimble
