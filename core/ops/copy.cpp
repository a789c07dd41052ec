#include <thimble/core/ops/copy.h>

#include <cmath>
#include <cstring>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/copy.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/tensor/unrecorded.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace {

void run(const Tensor& to, const Tensor& from) {
  check_one_device("copy", from, to);
  if (to.elements() == 0 && from.elements() == 0) return;
  fetch_parameters(to, from);
  const Tensor source = from.shape() == to.shape() ? from : view::expand(from.detach(), to.shape());
  launch(to.device(), [&](const Addresses& at) {
    kernels::copy_kernels(to.device())
        .copy({to.shape(), at(source), source.dtype(), source.strides(), at(to), to.dtype(), to.strides()});
  });
  to.storage()->bump_version();
}

Tensor copy(const Tensor& t, DType dtype, memory::Category category) {
  if (!t.defined()) throw ShapeError("copy: the tensor is undefined");
  Tensor result = Tensor::empty(t.shape(), dtype, t.device(), category);
  run(result, t);
  result.set_tape_ref({}, t.origin_unrecorded());
  return result;
}

/// The tensor on its device's dry twin. As to_device on the tensor's device, it takes no bytes of the current resource.
Tensor dry_twin(const Tensor& t, memory::Device device) {
  const ResourceScope elsewhere(default_resource(device));
  const std::size_t count = t.storage() ? t.storage()->bytes() / size_of(t.dtype()) : 0;
  const Tensor all = Tensor::empty({static_cast<std::int64_t>(count)}, t.dtype(), device);
  Tensor twin = all.window(t.shape(), t.strides(), t.offset());
  twin.set_tape_ref({}, t.origin_unrecorded());
  return twin;
}

}  // namespace

void copy_into(const Tensor& to, const Tensor& from) {
  if (!to.defined() || !from.defined()) throw ShapeError("copy_into: a tensor is undefined");
  check_unrecorded("copy_into", from, "the value itself");
  for (int axis = 0; axis < to.rank(); ++axis) {
    if (to.strides()[axis] == 0 && to.shape()[axis] > 1) throw ShapeError("copy_into: expanded " + describe(to));
  }
  keep_state(to);
  // Kernels read and write in any order, so another window on the same bytes is copied first.
  const bool is_other = to.strides() != from.strides() || to.offset() != from.offset();
  run(to, is_other && to.storage() == from.storage() ? copy(from.detach(), from.dtype(), memory::Category::temporary)
                                                     : from);
}

Tensor clone(const Tensor& t, memory::Category category) {
  check_unrecorded("clone", t, "the tensor itself, or dense()");
  return copy(t, t.dtype(), category);
}

Tensor contiguous(const Tensor& t) {
  if (t.is_contiguous()) return t;
  check_unrecorded("contiguous", t, "dense()");
  return copy(t, t.dtype(), memory::Category::temporary);
}

Tensor to_dtype(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  check_unrecorded("to_dtype", t, "cast()");
  return copy(t, dtype, memory::Category::temporary);
}

Tensor to_device(const Tensor& t, memory::Device device, memory::Category category) {
  if (t.device() == device) return t;
  if (!t.defined()) throw ShapeError("to_device: the tensor is undefined");
  check_unrecorded("to_device", t, "a leaf or a constant of that device");
  if (t.device().is_dry) throw DeviceError("to_device: " + describe(t) + " has no data to copy");
  if (t.device().is_cuda() && device.is_cuda() && !device.is_dry) return to_device(to_device(t, cpu), device, category);
  if (device == dry(t.device())) return dry_twin(t, device);
  const Tensor source = contiguous(t);
  Tensor result = Tensor::empty(t.shape(), t.dtype(), device, category);
  result.set_tape_ref({}, t.origin_unrecorded());
  if (device.is_dry || t.elements() == 0) return result;
  fetch_parameters(source);
  const memory::Device gpu = device.is_cuda() ? device : t.device();
  launch(gpu, [&](const Addresses& at) {
    const kernels::DeviceRuntime& runtime = kernels::device_runtime(gpu);
    (device.is_cuda() ? runtime.upload : runtime.download)(at(result), at(source), source.bytes());
  });
  return result;
}

void check_scalar(const char* operation, const Tensor& t, double value) {
  const int bits = t.dtype() == DType::boolean ? 64 : 8 * static_cast<int>(size_of(t.dtype()));
  const double limit = std::ldexp(1.0, t.dtype() == DType::u8 ? bits : bits - 1);
  if (is_floating(t.dtype()) || (std::trunc(value) == value && value < limit && value >= -limit)) return;
  throw DTypeError(std::string(operation) + ": " + std::to_string(value) + " is no integer of the tensor's, " +
                   describe(t) + "; use to_dtype(x, DType::f32) first, or an integer");
}

void fill(const Tensor& t, double value) {
  if (!t.defined()) throw ShapeError("fill: the tensor is undefined");
  check_scalar("fill", t, value);
  if (value < 0 && t.dtype() == DType::u8) throw DTypeError("fill: " + std::to_string(value) + " in " + describe(t));
  if (t.elements() == 0) return;
  keep_state(t);
  fetch_parameters(t);
  launch(t.device(), [&](const Addresses& at) {
    kernels::copy_kernels(t.device()).fill({t.shape(), value, at(t), t.dtype(), t.strides()});
  });
  t.storage()->bump_version();
}

Tensor zeros(const Shape& shape, DType dtype, memory::Device device, memory::Category category) {
  return full(shape, 0, dtype, device, category);
}

Tensor full(const Shape& shape, double value, DType dtype, memory::Device device, memory::Category category) {
  Tensor result = Tensor::empty(shape, dtype, device, category);
  fill(result, value);
  return result;
}

Tensor arange(std::int64_t n, DType dtype, memory::Device device) {
  if (n < 0) throw ShapeError("arange: expected at least 0 numbers, got " + std::to_string(n));
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  check_scalar("arange", Tensor::empty({0}, dtype, device), static_cast<double>(n - 1));
  return to_dtype(from_host(values, {n}, device), dtype);
}

template <class T>
Tensor from_host(std::span<const T> values, const Shape& shape, memory::Device device, memory::Category category) {
  if (shape.elements() != static_cast<std::int64_t>(values.size())) {
    throw ShapeError("from_host: " + std::to_string(values.size()) + " values for shape " + to_string(shape));
  }
  Tensor result = Tensor::empty(shape, dtype_of<T>, device, category);
  if (device.is_dry || values.empty()) return result;
  launch(device, [&](const Addresses& at) {
    if (device.is_cpu()) {
      std::memcpy(at(result), values.data(), values.size_bytes());
    } else {
      kernels::device_runtime(device).upload(at(result), values.data(), values.size_bytes());
    }
  });
  return result;
}

template <class T>
std::vector<T> to_host(const Tensor& t) {
  if (!t.defined()) throw ShapeError("to_host: the tensor is undefined");
  if (t.device().is_dry)
    throw DeviceError("to_host: " + describe(t) +
                      " has no values: a dry device runs no kernels; a program that is also planned reads them by "
                      "nn::read_value or nn::read_values (nn/step/read.h)");
  std::vector<T> values(static_cast<std::size_t>(t.elements()));
  const Tensor dense = contiguous(to_dtype(t.detach(), dtype_of<T>));
  fetch_parameters(dense);
  if (!values.empty()) {
    launch(t.device(), [&](const Addresses& at) {
      if (t.device().is_cpu()) {
        std::memcpy(values.data(), at(dense), values.size() * sizeof(T));
      } else {
        kernels::device_runtime(t.device()).download(values.data(), at(dense), values.size() * sizeof(T));
      }
    });
  }
  return values;
}

#define THIMBLE_HOST_COPY(T)                                                                        \
  template Tensor from_host<T>(std::span<const T>, const Shape&, memory::Device, memory::Category); \
  template std::vector<T> to_host<T>(const Tensor&);
THIMBLE_HOST_COPY(double)
THIMBLE_HOST_COPY(float)
THIMBLE_HOST_COPY(f16)
THIMBLE_HOST_COPY(bf16)
THIMBLE_HOST_COPY(f8e4m3)
THIMBLE_HOST_COPY(f8e5m2)
THIMBLE_HOST_COPY(std::int8_t)
THIMBLE_HOST_COPY(std::int32_t)
THIMBLE_HOST_COPY(std::int64_t)
THIMBLE_HOST_COPY(std::uint8_t)
#undef THIMBLE_HOST_COPY

double item(const Tensor& t) {
  if (t.elements() != 1) throw ShapeError("item: " + describe(t) + " has not exactly one element");
  return to_host<double>(t)[0];
}

}  // namespace thimble
