#pragma once
// Views with gradients. No bytes move, except where reshape meets strides that force a copy. Throw ShapeError.

#include <span>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The same elements in row-major order; one size may be -1.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Result axis i is x's axis order[i].
Tensor permute(const Tensor& x, std::initializer_list<int> order);
/// Two axes swapped.
Tensor transpose(const Tensor& x, int axis0 = -2, int axis1 = -1);
/// Elements [begin, end) with `step` along an axis; a negative begin or end counts from the end.
Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
/// Consecutive slices of the given sizes, which sum to the axis.
std::vector<Tensor> split(const Tensor& x, int axis, std::span<const std::int64_t> sizes);
std::vector<Tensor> split(const Tensor& x, int axis, std::initializer_list<std::int64_t> sizes);
/// `count` equal slices. Throws ShapeError unless count divides the axis.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int axis = 0);
/// Element `index` of an axis, without the axis; a negative index counts from the end.
Tensor select(const Tensor& x, int axis, std::int64_t index);
/// Without an axis of size 1.
Tensor squeeze(const Tensor& x, int axis);
/// With a new axis of size 1 before `axis` (-1: at the end).
Tensor unsqueeze(const Tensor& x, int axis);
/// Axes of size 1 and missing leading axes repeated.
Tensor expand(const Tensor& x, const Shape& shape);
/// From `first_axis` on as one axis.
Tensor flatten(const Tensor& x, int first_axis = 0);
/// x itself where it is dense, else a dense copy. (core/ops/copy.h has `contiguous` and `clone`, which are not
/// recorded.)
Tensor dense(const Tensor& x);
/// In another dtype; gradients are converted back.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace thimble
