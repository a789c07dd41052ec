#pragma once
// Tensors to and from NumPy's .npy files; core/files/npy.h has the format.

#include <string>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Loads an array as a dense tensor of the same dtype and shape. On a dry device only the header is read. Throws
/// FileError as read_npy() does, OutOfMemory, DeviceError.
Tensor load_npy(const std::string& path, memory::Device device = cpu, Category category = Category::input);

/// Writes a tensor of any strides, row-major and atomically. Throws DTypeError for bf16 and fp8, which the format
/// cannot name (convert to f32), and for quantized tensors, whose scales it cannot hold; DeviceError on a dry device,
/// which has no values; FileError.
void save_npy(const std::string& path, const Tensor& t);

}  // namespace thimble
