#include <thimble/core/files/npy_tensor.h>

#include <thimble/core/error.h>
#include <thimble/core/files/npy.h>
#include <thimble/core/ops/copy.h>

namespace thimble {

Tensor load_npy(const std::string& path, memory::Device device, Category category) {
  const NpyHeader header = read_npy_header(path);
  const Shape shape(std::span<const std::int64_t>(header.shape));
  if (device.is_dry) return Tensor::empty(shape, header.dtype, device, category);
  const Tensor result = Tensor::empty(shape, header.dtype, cpu, category);
  {
    const WritePin pin(result);
    read_npy_data(path, header, {static_cast<std::byte*>(pin.data()), result.bytes()});
  }
  return to_device(result, device, category);
}

void save_npy(const std::string& path, const Tensor& t) {
  if (t.scale()) {
    throw DTypeError("save_npy: " + describe(t) +
                     " is quantized; the file cannot hold its scales: dequantize it first");
  }
  npy_header(t.dtype(), std::span(t.shape().begin(), t.shape().end()));  // throws before copying
  if (t.device().is_dry) throw DeviceError("save_npy: " + describe(t) + " has no values: a dry device runs no kernels");
  const Tensor dense = contiguous(to_device(t.detach(), cpu));
  const Pin pin(dense);
  write_npy(path, t.dtype(), std::span(t.shape().begin(), t.shape().end()),
            {static_cast<const std::byte*>(pin.data()), dense.bytes()});
}

}  // namespace thimble
