#pragma once
// Reductions that operators build on; the tape does not see them.

#include <thimble/core/tensor.h>

namespace thimble {

/// A set of axes: bit i is axis i.
using AxisMask = std::uint32_t;

/// Axes as a mask; an empty list means all of them. Throws ShapeError for an axis out of range or named twice.
AxisMask axis_mask(const char* operation, std::span<const int> axes, int rank);

/// Shape without the masked axes, or with size 1 there.
Shape reduced_shape(const Shape& shape, AxisMask axes, bool keep_axes);

/// Sum over the masked axes, in the fixed order of kernels/reduce.h. Result dtype: that of t (i64 for integers and bool).
Tensor reduce_sum(const Tensor& t, AxisMask axes, bool keep_axes);

/// The gradient of a broadcast: sums t down to `shape`; t itself when the shapes are equal.
Tensor sum_to(const Tensor& t, const Shape& shape);

}  // namespace thimble
