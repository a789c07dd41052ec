#pragma once
// Dense windows of flat tensors: a range of a bucket, or of bytes from other ranks. And the path for booking both.

#include <cstdint>
#include <utility>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::dist {

/// The ranks' common memory is booked under this path.
inline PathScope ranks_path() { return PathScope(join_path(0, "ranks")); }

/// Elements of a dense tensor from `at` on, in `shape`: a constant.
inline Tensor window_of(const Tensor& flat, std::int64_t at, const Shape& shape) {
  Shape strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return flat.detach().window(shape, strides, flat.offset() + at);
}

}  // namespace thimble::dist
