#pragma once
// Q8_0: 32 numbers as one scale d (f16, little-endian) and 32 codes (i8), 34 bytes. d = amax / 127, and code = x times
// 1 / d rounded half to even, both with d in f32; the value of a code is code times the stored d.
//
// Codes and scales equal core/ops/quant/quantize.h with i8, flat(32) and scales in f16 (a test compares them). There
// they are two tensors; here a block is one run of bytes, as in ggml's files, and a dot product's operands are
// contiguous.

#include <cstdint>

#include <thimble/core/tensor/device.h>

namespace thimble::kernels {

inline constexpr std::int64_t q8_block = 32;
inline constexpr std::int64_t q8_block_bytes = 34;

/// Rows of `columns` numbers (a multiple of 32), element (i, j) at i row_stride + j column_stride, to `out`, row by
/// row. False, with `out` undefined, when a number is not finite or a scale is beyond f16.
bool quantize_q8_rows(const float* in, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                      std::int64_t column_stride, std::uint8_t* out) noexcept;

void dequantize_q8_blocks(const std::uint8_t* in, std::int64_t blocks, float* out) noexcept;

struct Q8Kernels {
  void (*dequantize)(const std::uint8_t* in, std::int64_t blocks, float* out) = nullptr;
};

extern const Q8Kernels q8_cpu;
extern const Q8Kernels* const q8_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const Q8Kernels& q8_kernels(memory::Device device);

}  // namespace thimble::kernels
