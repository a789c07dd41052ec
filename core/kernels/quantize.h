#pragma once
// The quantization kernel family: a dense matrix to 8-bit codes with a scale per block, and back
// (core/ops/quant/quantize.h). Arithmetic in f32.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// Blocks begin at multiples of block_rows and block_columns; the last of a row or column of blocks may be smaller.
struct QuantizeArgs {
  std::int64_t rows = 0, columns = 0;
  std::int64_t block_rows = 1, block_columns = 1;  ///< >= 1, at most rows and columns
  void* values = nullptr;                          ///< read by quantize, written by dequantize
  DType dtype = DType::f32;                        ///< floating
  void* codes = nullptr;
  DType code_dtype = DType::i8;    ///< i8, f8e4m3, f8e5m2; u8: dynamic codes
  bool is_signed = true;           ///< of dynamic codes
  void* scales = nullptr;          ///< (blocks down, blocks across)
  DType scale_dtype = DType::f32;  ///< f32, f16; u8: UE8M0
};

struct QuantizeKernels {
  void (*quantize)(const QuantizeArgs&) = nullptr;
  void (*dequantize)(const QuantizeArgs&) = nullptr;
};

extern const QuantizeKernels quantize_cpu;
extern const QuantizeKernels* const quantize_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const QuantizeKernels& quantize_kernels(memory::Device device);

}  // namespace thimble::kernels
