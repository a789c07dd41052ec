#pragma once
// Copies outside the tape, between layouts, dtypes and devices, and to and from host memory. The first group throws
// AutogradError where it would cut a gradient (core/tensor/unrecorded.h).

#include <span>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// to[i] = from[i], converted; `from` may broadcast, and is copied first if it is another window on `to`'s storage.
/// Counts as a write of `to`. Throws ShapeError (also for an expanded `to`), DeviceError.
void copy_into(const Tensor& to, const Tensor& from);

/// A dense copy with the same dtype.
Tensor clone(const Tensor& t, memory::Category category = memory::Category::temporary);
/// t itself if it is dense, else a dense copy.
Tensor contiguous(const Tensor& t);
/// A dense copy in another dtype; t itself if it has that dtype.
Tensor to_dtype(const Tensor& t, DType dtype);
/// A dense copy on another device; t itself if it is there. Copies between two CUDA devices pass through host memory.
/// Copies to a dry device move no data; copies from one throw DeviceError. On the dry twin of t's device the result
/// takes no bytes of the current resource, as t itself would.
Tensor to_device(const Tensor& t, memory::Device device, memory::Category category = memory::Category::temporary);
/// Sets every element, converted to t's dtype. Counts as a write. Throws DTypeError as check_scalar does.
void fill(const Tensor& t, double value);
/// Throws DTypeError if t's dtype is not floating and `value` is no integer in its range (for u8: -256 to 255, as for
/// x - 1): integer arithmetic would lose its fraction or high bits.
void check_scalar(const char* operation, const Tensor& t, double value);

Tensor zeros(const Shape& shape, DType dtype = DType::f32, memory::Device device = cpu,
             memory::Category category = memory::Category::temporary);
Tensor full(const Shape& shape, double value, DType dtype = DType::f32, memory::Device device = cpu,
            memory::Category category = memory::Category::temporary);
/// 0, 1, ..., n - 1.
Tensor arange(std::int64_t n, DType dtype = DType::i64, memory::Device device = cpu);

/// A tensor of host values in row-major order; T is the C++ type of the dtype. On a dry device the values are not read.
/// Throws ShapeError if the count does not fit the shape.
template <class T>
Tensor from_host(std::span<const T> values, const Shape& shape, memory::Device device = cpu,
                 memory::Category category = memory::Category::temporary);
template <class T>
Tensor from_host(const std::vector<T>& values, const Shape& shape, memory::Device device = cpu,
                 memory::Category category = memory::Category::temporary) {
  return from_host(std::span<const T>(values), shape, device, category);
}

/// The values in row-major order, converted to T. Throws DeviceError on a dry device, which has none.
template <class T>
std::vector<T> to_host(const Tensor& t);

/// The value of a tensor with one element. Throws ShapeError, and DeviceError on a dry device.
double item(const Tensor& t);

}  // namespace thimble
