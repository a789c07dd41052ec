#pragma once
// Normalisations. The operators in core/ops/norm/layer_norm.h, group_norm.h and batch_norm.h have formulas, sources and
// the tensors kept for backward. Weight and bias may be undefined; they are in x's dtype or in f32. Throw ShapeError,
// DTypeError, DeviceError, ValueError.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Over the last `axes` axes of x, which are the shape of weight and bias.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5,
                  int axes = 1);
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-6, int axes = 1);

/// x: (N, ..., C); each sample over each of `groups` groups of channels. weight, bias: (C).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double epsilon = 1e-5);

/// x: (N, ..., C); each sample over each channel, as group_norm with a group for each.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);

struct BatchNormOptions {
  /// Uses the batch's statistics and updates the running ones; otherwise, and in evaluation (core/tensor/evaluation.h),
  /// uses the running ones if there are any.
  bool training = true;
  double momentum = 0.1;
  double epsilon = 1e-5;
};

/// x: (..., C), over all axes but the last; all others are (C). The running statistics may be undefined in training;
/// they change once for each forward, never in a recompute, and inside a Transaction when it commits.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, const BatchNormOptions& options = {});
/// max(batch_norm(x), 0), bit for bit.
Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const BatchNormOptions& options = {});
/// max(batch_norm(x) + residual, 0), bit for bit. The residual has x's shape and dtype.
Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options = {});

}  // namespace thimble
