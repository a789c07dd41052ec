#pragma once
// Tensors to and from NumPy's .npy files; the format itself is in core/files/npy.h.

#include <string>

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The array of a file as a dense tensor of the same dtype and shape. On a dry device the header is read and the
/// elements are not. Throws FileError as read_npy() does, OutOfMemory, DeviceError.
Tensor load_npy(const std::string& path, Device device = cpu, Category category = Category::input);

/// Writes a tensor, of any strides, row-major; the file appears whole or not at all. Throws DTypeError for bf16 and
/// fp8, which the format cannot name (convert to f32), and for quantized tensors, whose scales it cannot hold;
/// DeviceError on a dry device, which has no values; FileError.
void save_npy(const std::string& path, const Tensor& t);

}  // namespace thimble
