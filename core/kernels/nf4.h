#pragma once
// The NF4 kernel family: numbers to codes of 4 bits (core/numbers/nf4.h) and back, in blocks of 64 along dense memory.
// Arithmetic in f32. The magnitudes of blocks are numbers here; core/ops/quant/weight_code.h encodes them.

#include <cstdint>

#include <thimble/core/tensor/device.h>
#include <thimble/core/tensor/dtype.h>

namespace thimble::kernels {

inline constexpr std::int64_t nf4_block = 64;

/// The first of two numbers is in the high half of their byte, as in bitsandbytes; the last byte of an odd count has
/// code 0 in its low half.
struct Nf4Args {
  std::int64_t elements = 0;
  void* values = nullptr;  ///< read by encode, written by decode
  DType dtype = DType::f32;
  std::uint8_t* codes = nullptr;  ///< (elements + 1) / 2
  float* amax = nullptr;          ///< of each block; for decode less *offset
  float* offset = nullptr;        ///< of decode and center
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

}  // namespace thimble::kernels
