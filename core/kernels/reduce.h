#pragma once
// The reduction kernel family. The order in which elements of one reduction are combined depends on its length alone:
// blocks of `reduce_block` elements one after the other in the compute type, block results in f64 within stretches of
// `reduce_stretch`, stretch results one after the other. Layout, rows and threads do not matter.

#include <cstddef>
#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

inline constexpr std::int64_t reduce_block = 128;
inline constexpr std::int64_t reduce_stretch = 1 << 16;

/// out[k] = sum over r of in[k, r]; k runs over `kept`, r over `reduced`, both in row-major order. The output is dense.
struct ReduceArgs {
  const void* in = nullptr;
  DType in_dtype = DType::f32;
  Shape kept, kept_strides;
  Shape reduced, reduced_strides;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  double* partial = nullptr;  ///< reduce_partial_elements(...) doubles; unused when that is 0
};

/// Doubles needed between the two stages of a long reduction; 0 when one stage does.
std::int64_t reduce_partial_elements(std::int64_t kept, std::int64_t reduced) noexcept;

struct ReduceKernels {
  void (*sum)(const ReduceArgs&) = nullptr;
};

extern const ReduceKernels reduce_cpu;
extern const ReduceKernels* const reduce_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const ReduceKernels& reduce_kernels(Device device);

}  // namespace thimble::kernels
