#pragma once
// Views with gradients. No bytes move, unless reshape meets strides that force a copy. Throw ShapeError.

#include <span>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The same elements in row-major order; one size may be -1.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Axis i of the result is x's axis order[i].
Tensor permute(const Tensor& x, std::initializer_list<int> order);
/// Swaps two axes.
Tensor transpose(const Tensor& x, int axis0 = -2, int axis1 = -1);
/// Elements [begin, end) with `step` along an axis; a negative begin or end counts from the end.
Tensor slice(const Tensor& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
/// Consecutive slices of the given sizes, which sum to the axis.
std::vector<Tensor> split(const Tensor& x, int axis, std::span<const std::int64_t> sizes);
std::vector<Tensor> split(const Tensor& x, int axis, std::initializer_list<std::int64_t> sizes);
/// `count` equal slices. Throws ShapeError unless count divides the axis.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int axis = 0);
/// Element `index` of an axis, which goes away; a negative index counts from the end.
Tensor select(const Tensor& x, int axis, std::int64_t index);
/// Removes an axis of size 1.
Tensor squeeze(const Tensor& x, int axis);
/// Adds an axis of size 1 before `axis`, or at the end for -1.
Tensor unsqueeze(const Tensor& x, int axis);
/// Repeats axes of size 1 and missing leading axes.
Tensor expand(const Tensor& x, const Shape& shape);
/// Joins the axes from `first_axis` on.
Tensor flatten(const Tensor& x, int first_axis = 0);
/// x itself if it is dense, else a dense copy. (core/ops/copy.h has `contiguous` and `clone`, which are not recorded.)
Tensor dense(const Tensor& x);
/// Converts to another dtype; gradients are converted back.
Tensor cast(const Tensor& x, DType dtype);

}  // namespace thimble
