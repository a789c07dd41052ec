#pragma once
// The kernels of weights in codes: NF4 and Q8_0.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

// ---- NF4: numbers to codes of 4 bits (core/numbers/nf4.h) and back, in blocks of 64 along dense
// memory. Arithmetic in f32. The magnitudes of blocks are numbers here; core/ops/quant/weight_code.h encodes them.

inline constexpr std::int64_t nf4_block = 64;

/// The first of two numbers is in the high half of their byte, as in bitsandbytes; the last byte of an odd count has
/// code 0 in its low half.
struct Nf4Args {
  std::int64_t elements = 0;
  void* values = nullptr;  ///< read by encode, written by decode
  DType dtype = DType::f32;
  std::uint8_t* codes = nullptr;  ///< (elements + 1) / 2
  float* amax = nullptr;          ///< one per block; for decode less *offset
  float* offset = nullptr;        ///< used by decode and center
};

struct Nf4Kernels {
  /// amax, and codes of value * (1 / amax). A block whose amax is below 2^-126 is 0; a NaN or an infinity becomes its
  /// block's amax.
  void (*encode)(const Nf4Args&) = nullptr;
  /// *offset = mean of the amax, summed in f64 in their order; amax -= *offset.
  void (*center)(const Nf4Args&) = nullptr;
  /// value = level * (amax + *offset), rounded to the dtype.
  void (*decode)(const Nf4Args&) = nullptr;
};

extern const Nf4Kernels nf4_cpu;
extern const Nf4Kernels* const nf4_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const Nf4Kernels& nf4_kernels(memory::Device device);

// ---- Q8_0: 32 numbers as one scale d (f16, little-endian) and 32 codes (i8), 34 bytes. d = amax / 127, and a code is
// x times 1 / d, rounded half to even, with d in f32; a code's value is the code times the stored d.
//
// Codes and scales equal core/ops/quant/quantize.h with i8, flat(32) and scales in f16 (a test compares them). There
// they are two tensors; here a block is one run of bytes, as in ggml's files, and a dot product's operands are
// contiguous.

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
