#pragma once
// Pooling of images (N, H, W, C). The operators in core/ops/conv/pool.h have the formulas and the tensors kept for
// backward. Throw ShapeError, DTypeError, DeviceError, ValueError.

#include <thimble/core/ops/conv/pool.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// `max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}})`.
Tensor max_pool2d(const Tensor& x, const PoolWindow& window, MaxPoolKeeps keeps = MaxPoolKeeps::input);
/// No dilation. `count_include_pad`: the zeros of the padding count as elements.
Tensor avg_pool2d(const Tensor& x, const PoolWindow& window, bool count_include_pad = true);
/// (N, ..., C) -> (N, C).
Tensor global_avg_pool(const Tensor& x);

}  // namespace thimble
