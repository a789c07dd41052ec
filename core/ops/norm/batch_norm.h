#pragma once
// Batch normalisation of (..., C) over all axes but the last, plain or fused with the usual next operators in one pass:
//
//   BatchNorm<none>       y = n          where n = (x - mean) rstd weight + bias, rstd = 1 / sqrt(variance + epsilon)
//   BatchNorm<relu>       y = max(n, 0)
//   BatchNorm<add_relu>   y = max(n + residual, 0)
//
// Ioffe, Szegedy 2015 (arXiv:1502.03167), algorithm 1. Values and gradients of the fused forms have the bits of the
// separate operators. Operands are (x, residual, weight, bias); only add_relu has a residual; weight and bias are (C),
// in x's dtype or f32, or undefined. Throw ShapeError, DTypeError, DeviceError, ValueError.

#include <thimble/core/kernels/norm.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

using kernels::NormTail;

/// With the statistics of the batch (biased variance). Unless this is a recompute, defined running statistics are
/// updated: running = (1 - momentum) running + momentum new, with the unbiased variance; they are attributes, not
/// operands, because the result does not depend on them.
///
/// Keeps x, mean and rstd (C each, f32; f64 for f64) and weight for x's gradient. A relu tail is recomputed from x, so
/// any gradient needs x, the statistics, weight and bias, and not y; add_relu keeps one bit for each element. One pass
/// recomputes y from these.
template <NormTail tail>
struct BatchNorm {
  static constexpr const char* name = tail == NormTail::none   ? "batch_norm"
                                      : tail == NormTail::relu ? "batch_norm_relu"
                                                               : "batch_norm_add_relu";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean, rstd, weight, bias, mask;
    DType parameter_dtype = DType::f32;
  };
  Tensor running_mean, running_var;
  double momentum = 0.1, epsilon = 1e-5;

  Tensor forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  Tensor output_from_saved(Saved saved, std::span<const Tensor> inputs) const;
};

/// With the running statistics, which are operands here and take no gradient. Keeps x for weight's gradient or a relu
/// tail, the operands that a gradient reads, and the mask of add_relu.
template <NormTail tail>
struct BatchNormEval {
  static constexpr const char* name = tail == NormTail::none   ? "batch_norm_eval"
                                      : tail == NormTail::relu ? "batch_norm_relu_eval"
                                                               : "batch_norm_add_relu_eval";
  static constexpr Cost cost = Cost::elementwise;
  static constexpr Needs differentiable{0b1111};
  struct Saved {
    Tensor x, weight, bias, running_mean, running_var, mask;
    DType parameter_dtype = DType::f32;
  };
  double epsilon = 1e-5;

  Tensor forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                 const Tensor& running_mean, const Tensor& running_var, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
