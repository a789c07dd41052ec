#pragma once
// Normalisations. core/ops/norm/norm.h has formulas, sources and the tensors kept for backward. Weight and bias may be
// undefined; they are in x's dtype or in f32. Throw ShapeError, DTypeError, DeviceError, ValueError.

#include <thimble/core/ops/conv/pool.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Over the last `axes` axes of x, which are the shape of weight and bias.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5,
                  int axes = 1);
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-6, int axes = 1);

/// x (N, ..., C), weight and bias (C): each sample over each of `groups` groups of channels.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double epsilon = 1e-5);

/// x (N, ..., C): each sample over each channel, as group_norm with one channel per group.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5);

struct BatchNormOptions {
  /// Uses the batch's statistics and updates the running ones; otherwise, and in evaluation (core/tensor/context.h),
  /// uses the running ones if there are any.
  bool training = true;
  double momentum = 0.1;
  double epsilon = 1e-5;
};

/// x (..., C), over all axes but the last; the other operands are (C). The running statistics may be undefined in
/// training. They change once per forward, never in a recompute, and inside a Transaction when it commits.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, const BatchNormOptions& options = {});
/// max(n, 0), min(max(n, 0), 6) and max(n + residual, 0) of n = batch_norm(x), bit for bit. The residual has x's shape.
Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, const BatchNormOptions& options = {});
Tensor batch_norm_relu6(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                        const Tensor& running_var, const BatchNormOptions& options = {});
Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, const BatchNormOptions& options = {});

// ---- Pooling and resizing of images (N, H, W, C). core/ops/conv/pool.h has the formulas and the tensors kept for
// backward. Throw ShapeError, DTypeError, DeviceError, ValueError.

/// `max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}})`.
Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps = MaxPoolKeeps::input);
/// Without dilation. With `count_include_pad`, padding zeros count as elements.
Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad = true);
/// (N, H, W, C) -> (N, height, width, C): windows of nearly equal sizes cover the image. For 1 x 1 the values are
/// global_avg_pool's.
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width);

/// The interpolation of pixels; core/kernels/shared/resample_axis.h has the formulas.
using Resample = kernels::Resample;
/// (N, H, W, C) -> (N, height, width, C), larger or smaller, as torch.nn.functional.interpolate for a size: `nearest`,
/// `linear` (bilinear), `linear_aligned` (align_corners) or `area`. Positions are exact, while PyTorch's nearest rounds
/// in / out to f32. Keeps nothing.
Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Resample mode = Resample::nearest);
/// interpolate with both sides `factor` times as long.
Tensor upsample(const Tensor& x, std::int64_t factor, Resample mode = Resample::nearest);
/// (N, ..., C) -> (N, C).
Tensor global_avg_pool(const Tensor& x);

}  // namespace thimble
