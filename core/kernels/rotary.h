#pragma once
// The rotary kernel family: pairs of numbers rotated by angles that grow with the position
// (core/ops/elementwise/rotary.h).

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// Limit of pairs in one head.
inline constexpr std::int64_t rotary_pairs = 256;

/// x and y (batch, length, heads, width), dense; y may be x. Pair i of a head, its numbers i and i + width / 2, is
/// rotated by (first_position + t) frequencies[i] and multiplied by scale: the angle, scale times its sine and its
/// cosine in f64, the rest in the compute type.
struct RotaryArgs {
  DType dtype = DType::f32;
  std::int64_t batch = 0, length = 0, heads = 0, width = 0;
  std::int64_t first_position = 0;
  double frequencies[rotary_pairs] = {};
  double scale = 1;
  const void* x = nullptr;
  void* y = nullptr;
};

struct RotaryKernels {
  void (*turn)(const RotaryArgs&) = nullptr;
};

extern const RotaryKernels rotary_cpu;
extern const RotaryKernels* const rotary_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const RotaryKernels& rotary_kernels(memory::Device device);

}  // namespace thimble::kernels
