#pragma once
// Losses. core/ops/reduction/loss.h has the formulas and the tensors kept for backward. A loss is f32 (f64 for f64).

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
/// per row; log-probabilities are never stored. The mean is over the rows that count: NaN when none does. Throws
/// ShapeError, DTypeError, DeviceError, ValueError (label smoothing; on a CPU, a target that is no class, naming its
/// row).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// cross_entropy(linear(x, weight, bias), targets) without the logits: x (N, C), weight (V, C), targets (N), bias (V)
/// or undefined; the reduction is mean or sum. Forward takes rows in chunks, and computes and keeps the gradients of x,
/// weight and bias that are needed. core/ops/matmul/chunked.h says which bits equal the composition's. Throws
/// ShapeError, DTypeError, DeviceError, ValueError.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, const Tensor& bias = {});

/// nll(log_softmax(logits)), which keeps the log-probabilities (..., C), for comparison.
Tensor cross_entropy_textbook(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

/// Negative log-likelihood of log-probabilities (..., C). Keeps only the targets.
Tensor nll(const Tensor& log_probabilities, const Tensor& targets, const CrossEntropyOptions& options = {});

/// (x - target)^2, reduced over all elements, or unreduced in x's dtype. Both operands may need gradients, and both are
/// kept by reference. Throws ShapeError unless the shapes are equal, DTypeError, DeviceError.
Tensor mse_loss(const Tensor& x, const Tensor& target, LossReduction reduction = LossReduction::mean);

// The losses below are reduced in the same way; core/kernels/functors/reduction_functors.h has the formulas. Operands
// have one shape, and both may need gradients.

/// |x - target|.
Tensor l1_loss(const Tensor& x, const Tensor& target, LossReduction reduction = LossReduction::mean);
/// d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2). Throws ValueError unless delta > 0.
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1,
                  LossReduction reduction = LossReduction::mean);
/// -w t log sigmoid(z) - (1 - t) log(1 - sigmoid(z)), w the positive weight: binary cross entropy of logits and targets
/// in [0, 1]. Throws ValueError unless w is finite and at least 0.
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets, double positive_weight = 1,
                       LossReduction reduction = LossReduction::mean);
/// t (log t - x) of log-probabilities x and targets t, or e^t (t - x) if the targets are logarithms too. The mean is
/// over all elements, as PyTorch's; for the mean over samples divide the sum by their number.
Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, LossReduction reduction = LossReduction::mean,
              bool is_log_target = false);

/// a b / (max(|a|, epsilon) max(|b|, epsilon)) along `axis`, for a and b that broadcast. Composed: keeps a, b, and a
/// few numbers per result. Sums are in f64, so no f32 overflows or vanishes. Throws ValueError for epsilon < 0.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int axis = -1, double epsilon = 1e-8);
/// Of a and b (N, C): 1 - cos(a, b) where a target (N) is 1, max(0, cos(a, b) - margin) where it is -1. Composed.
/// Throws ShapeError, and ValueError for a margin that is not finite and, on a CPU, for other targets.
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& targets, double margin = 0,
                             LossReduction reduction = LossReduction::mean);

}  // namespace thimble
