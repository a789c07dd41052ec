#pragma once
// The copy kernel family: strided copies with dtype conversion, and fills.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

/// to[i] = convert(from[i]) for every index i of `shape`; strides in elements (0 in from_strides repeats).
struct CopyArgs {
  Shape shape;
  const void* from = nullptr;
  DType from_dtype = DType::f32;
  Shape from_strides;
  void* to = nullptr;
  DType to_dtype = DType::f32;
  Shape to_strides;
};

/// to[i] = value, for every index i of `shape`.
struct FillArgs {
  Shape shape;
  double value = 0;
  void* to = nullptr;
  DType dtype = DType::f32;
  Shape strides;
};

struct CopyKernels {
  void (*copy)(const CopyArgs&) = nullptr;
  void (*fill)(const FillArgs&) = nullptr;
};

extern const CopyKernels copy_cpu;
extern const CopyKernels* const copy_cuda;  ///< null in a build without CUDA

/// The family's kernels for a device. Throws DeviceError when this build has none.
const CopyKernels& copy_kernels(memory::Device device);

}  // namespace thimble::kernels
