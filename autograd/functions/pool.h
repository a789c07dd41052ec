#pragma once
// Pooling and resizing of images (N, H, W, C). The operators in core/ops/conv/pool.h have the formulas and the tensors
// kept for backward. Throw ShapeError, DTypeError, DeviceError, ValueError.

#include <thimble/core/ops/conv/pool.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// `max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}})`.
Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps = MaxPoolKeeps::input);
/// No dilation. `count_include_pad`: the zeros of the padding count as elements.
Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad = true);
/// (N, H, W, C) -> (N, height, width, C): windows of nearly equal sizes that cover the image. For 1 x 1 it gives
/// global_avg_pool's values.
Tensor adaptive_avg_pool2d(const Tensor& x, std::int64_t height, std::int64_t width);

/// How new pixels are made of old ones; core/kernels/shared/resample_axis.h has the formulas.
using Resample = kernels::Resample;
/// (N, H, W, C) -> (N, height, width, C), larger or smaller, as torch.nn.functional.interpolate for a size: `nearest`,
/// `linear` (bilinear), `linear_aligned` (align_corners) or `area`. Positions are exact, where PyTorch's nearest rounds
/// in / out to f32. Keeps nothing.
Tensor interpolate(const Tensor& x, std::int64_t height, std::int64_t width, Resample mode = Resample::nearest);
/// The same with both sides `factor` times as long.
Tensor upsample(const Tensor& x, std::int64_t factor, Resample mode = Resample::nearest);
/// (N, ..., C) -> (N, C).
Tensor global_avg_pool(const Tensor& x);

}  // namespace thimble
