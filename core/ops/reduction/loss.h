#pragma once
// Losses. A loss is f32 (f64 for f64 operands): in 16 bits a mean would be coarse, and a scaled f16 loss would
// overflow.

#include <thimble/core/kernels/cross_entropy.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

using LossReduction = kernels::LossReduction;

/// Cross entropy of logits (..., C) and class numbers (...) in i32 or i64, fused: with t a row's target, s the label
/// smoothing,
///   loss = log sum_c e^x_c - (1 - s) x_t - s / C sum_c x_c
/// (Szegedy et al. 2015, arXiv:1512.00567, section 7, for the smoothing). Rows whose target is ignore_index do not
/// count. Result: mean over the rows that count (NaN if none does), sum, or one loss per row (...). dx_c = g (e^(x_c
/// - lse) - s / C - (1 - s) [c = t]), written in the logits' buffer if they have no other holder. Keeps the logits
/// and the targets by reference, and lse = log sum e^x per row, in f32 (f64 for f64). Throws ShapeError, DTypeError,
/// DeviceError, ValueError (smoothing outside [0, 1]; on a CPU, a target that is no class).
struct CrossEntropy {
  static constexpr const char* name = "cross_entropy";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor logits, targets, lse;
  };
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  LossReduction reduction = LossReduction::mean;

  Tensor forward(const Tensor& logits, const Tensor& targets, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Negative log-likelihood of log-probabilities (..., C): CrossEntropy with lse = 0. Keeps the targets by reference.
/// Throws as CrossEntropy does.
struct Nll {
  static constexpr const char* name = "nll";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor targets;
    Shape shape;
    DType dtype = DType::f32;
  };
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  LossReduction reduction = LossReduction::mean;

  Tensor forward(const Tensor& log_probabilities, const Tensor& targets, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Mean (or sum) of f(x, target) over all elements of two tensors of one shape and dtype; NaN (or 0) without elements.
/// A functor in reduction_functors.h defines f, with `parameter` (core/kernels/reduce.h), and the operands that its
/// gradients keep by reference. Throws ShapeError, DTypeError, DeviceError.
template <kernels::ReduceMap map>
struct PairLoss {
  static constexpr const char* name = map == kernels::ReduceMap::squared_difference    ? "mse_loss"
                                      : map == kernels::ReduceMap::absolute_difference ? "l1_loss"
                                      : map == kernels::ReduceMap::huber               ? "huber_loss"
                                      : map == kernels::ReduceMap::bce_with_logits     ? "bce_with_logits"
                                                                                       : "kl_div";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, target;
    Shape shape;
    DType dtype = DType::f32;
  };
  bool is_mean = true;
  double parameter = 0;

  Tensor forward(const Tensor& x, const Tensor& target, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
