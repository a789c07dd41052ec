#pragma once
// Windows on the same storage, unrecorded: they throw AutogradError where they would cut a gradient
// (core/tensor/unrecorded.h). Programs use the differentiable functions of the same names.

#include <span>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble::view {

/// The tensor itself. Throws ShapeError if it is undefined.
const Tensor& defined(const char* operation, const Tensor& t);
/// Maps an axis of the tensor, in [-rank, rank), to [0, rank). Throws ShapeError, also for an undefined tensor.
int axis_of(const char* operation, int axis, const Tensor& t);

/// The same elements in row-major order under another shape; one size may be -1. Throws ShapeError when the counts
/// differ or the strides require a copy.
Tensor reshape(const Tensor& t, const Shape& shape);
/// `shape` with its -1 replaced. Throws ShapeError.
Shape resolve_shape(const char* operation, const Shape& shape, std::int64_t elements);
/// Whether reshape(t, shape) needs no copy.
bool can_reshape(const Tensor& t, const Shape& shape);

/// Axis i of the result is t's axis order[i].
Tensor permute(const Tensor& t, std::span<const int> order);
Tensor permute(const Tensor& t, std::initializer_list<int> order);
/// Swaps two axes.
Tensor transpose(const Tensor& t, int axis0 = -2, int axis1 = -1);
/// Elements [begin, end) with `step` > 0 along an axis; 0 <= begin <= end <= size.
Tensor slice(const Tensor& t, int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
/// Consecutive slices of the given sizes, which sum to the axis.
std::vector<Tensor> split(const Tensor& t, int axis, std::span<const std::int64_t> sizes);
/// Removes an axis of size 1.
Tensor squeeze(const Tensor& t, int axis);
/// Adds an axis of size 1 before `axis`, or at the end for -1.
Tensor unsqueeze(const Tensor& t, int axis);
/// Repeats axes of size 1 and missing leading axes to `shape` with stride 0.
Tensor expand(const Tensor& t, const Shape& shape);

}  // namespace thimble::view
