#pragma once

#include <thimble/core/kernels/norm.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::norm_detail {

// ---- Shared by the normalisation operators: checks of operands, and calls of the channel kernels
// (core/kernels/norm.h) of batch norm and group norm.

/// The dtype of statistics: f64 for f64, else f32.
constexpr DType statistics_dtype(DType dtype) noexcept { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Throws ValueError unless epsilon is finite and at least 0.
void check_epsilon(const char* operation, double epsilon);
/// Throws DTypeError unless x is floating, ShapeError unless its rank is at least `rank`, and as check_epsilon does.
void check_input(const char* operation, const Tensor& x, int rank, double epsilon);
/// Checks a weight, bias or running statistic of x: undefined, or of the given shape, on x's device, in x's dtype or,
/// if x is narrower, in f32. Throws ShapeError, DTypeError, DeviceError.
void check_parameter(const char* operation, const char* what, const Tensor& parameter, const Tensor& x,
                     const Shape& shape);
/// The common dtype of the defined tensors. Throws DTypeError if they differ.
DType common_dtype(const char* operation, const Tensor& weight, const Tensor& bias, DType otherwise);
/// Dense and in the dtype of statistics; undefined stays undefined.
Tensor as_statistics(const Tensor& parameter, DType x_dtype);

/// x as (instances, rows, channels), with statistics over the rows and channels of each group.
struct ChannelLayout {
  std::int64_t instances = 0, rows = 0, channels = 0, groups = 0;
};

/// Operands and attributes of y = tail((x - mean) rstd weight + bias).
struct ChannelNorm {
  ChannelLayout layout;
  kernels::NormTail tail = kernels::NormTail::none;
  double epsilon = 0, momentum = 0;
  bool uses_running = false;  ///< uses the running statistics; otherwise they are updated, if defined
  Tensor x = {}, residual = {}, weight = {}, bias = {}, running_mean = {}, running_var = {};
};

/// Tensors that forward can keep for backward.
struct ChannelNormKept {
  Tensor mean, rstd;  ///< (instances, groups), in the statistics' dtype
  Tensor mask;        ///< u8, one bit per element of y: y > 0
};

/// Returns y. Uses the statistics in `kept` if they are defined, else writes the requested ones there, and the mask. A
/// recompute does not update running statistics.
Tensor channel_norm_forward(const ChannelNorm& call, bool keeps_statistics, bool keeps_mask, ChannelNormKept& kept);

/// The requested gradients.
struct ChannelNormWants {
  bool x = false, residual = false, weight = false, bias = false;
};
struct ChannelNormGradients {
  Tensor x, residual, weight, bias;
};

/// Reads from `call` x and the statistics (`kept`, or the running ones) for the gradients of x and weight and for a
/// relu(6) tail (with fixed statistics x's gradient needs no x), weight for x's gradient and a relu(6) tail, bias for a
/// relu(6) tail, and the mask for an add_relu tail. dx and dresidual are written in the buffers of dy and x if these
/// have no other holder.
ChannelNormGradients channel_norm_backward(ChannelNorm call, ChannelNormKept kept, Tensor dy, ChannelNormWants wants,
                                           DType parameter_dtype);

}  // namespace thimble::norm_detail

namespace thimble::ops {

// ---- Batch normalisation of (..., C) over all axes but the last, plain or fused with the usual next operators:
//
//   BatchNorm<none>       y = n          where n = (x - mean) rstd weight + bias, rstd = 1 / sqrt(variance + epsilon)
//   BatchNorm<relu>       y = max(n, 0)
//   BatchNorm<relu6>      y = min(max(n, 0), 6)
//   BatchNorm<add_relu>   y = max(n + residual, 0)
//
// Ioffe, Szegedy 2015 (arXiv:1502.03167), algorithm 1. Values and gradients of the fused forms have the bits of the
// separate operators. Operands are (x, residual, weight, bias); only add_relu has a residual; weight and bias are (C),
// in x's dtype or f32, or undefined. Throw ShapeError, DTypeError, DeviceError, ValueError.

using kernels::NormTail;

/// Uses the batch's statistics (biased variance). Unless this is a recompute, updates defined running statistics:
/// running = (1 - momentum) running + momentum new, with the unbiased variance. They are attributes, not operands,
/// because the result does not depend on them.
///
/// Keeps x, mean and rstd (C each, f32; f64 for f64) and weight for x's gradient. A relu(6) tail is recomputed from x,
/// so any gradient needs x, the statistics, weight and bias, and not y; add_relu keeps one bit per element. One pass
/// recomputes y from these.
template <NormTail tail>
struct BatchNorm {
  static constexpr const char* name = tail == NormTail::none    ? "batch_norm"
                                      : tail == NormTail::relu  ? "batch_norm_relu"
                                      : tail == NormTail::relu6 ? "batch_norm_relu6"
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

/// Uses the running statistics, which are operands here and have no gradient. Keeps x for weight's gradient or a
/// relu(6) tail, the other operands that a gradient reads, and add_relu's mask.
template <NormTail tail>
struct BatchNormEval {
  static constexpr const char* name = tail == NormTail::none    ? "batch_norm_eval"
                                      : tail == NormTail::relu  ? "batch_norm_relu_eval"
                                      : tail == NormTail::relu6 ? "batch_norm_relu6_eval"
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

// ---- Normalisation over the last axes. mean and rstd are kept in f32 (f64 for f64), one per row.

/// y = (x - mean) rstd weight + bias, with mean and rstd = 1 / sqrt(variance + epsilon) (biased variance) over the last
/// `axes` axes. Ba, Kiros, Hinton 2016 (arXiv:1607.06450), equation 4.
///
/// x: (..., L), floating; weight, bias: x's last axes, or undefined; in x's dtype or f32. With g = dy weight and xhat =
/// (x - mean) rstd: dx = (g - mean(g) - xhat mean(g xhat)) rstd, dweight = sum of dy xhat, dbias = sum of dy over rows;
/// `groups` splits the rows into equal contiguous groups, sums each, and adds their sums from the last to the first.
/// Keeps x, mean and rstd for the gradients of x and weight, and weight for x's. Throws ShapeError, DTypeError,
/// DeviceError, ValueError.
struct LayerNorm {
  static constexpr const char* name = "layer_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  int axes = 1;
  double epsilon = 1e-5;
  std::int64_t groups = 1;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = x rstd weight, where rstd = 1 / sqrt(mean(x^2) + epsilon) over the last `axes` axes. Zhang, Sennrich 2019
/// (arXiv:1910.07467), equation 4.
///
/// Shapes, dtypes and errors as LayerNorm. dx = (g - xhat mean(g xhat)) rstd. Keeps x, rstd, and for dx the weight.
struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  int axes = 1;
  double epsilon = 1e-6;
  std::int64_t groups = 1;

  Tensor forward(const Tensor& x, const Tensor& weight, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = (x - mean) rstd weight + bias, with mean and rstd = 1 / sqrt(variance + epsilon) (biased variance) for each
/// sample and each of `groups` groups of neighbouring channels. Wu, He 2018 (arXiv:1803.08494), equations 1 to 3 and 7.
///
/// x: (N, ..., C), floating; groups divides C; weight, bias: (C), in x's dtype or f32, or undefined. Keeps x, mean and
/// rstd (N groups each, f32; f64 for f64) for the gradients of x and weight, and weight for x's. Throws ShapeError,
/// DTypeError, DeviceError, ValueError.
struct GroupNorm {
  static constexpr const char* name = "group_norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean, rstd, weight;
    DType parameter_dtype = DType::f32;
  };
  std::int64_t groups = 1;
  double epsilon = 1e-5;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
