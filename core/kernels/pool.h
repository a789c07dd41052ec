#pragma once
// The pooling kernel family: images are (N, H, W, C), windows slide over H and W.

#include <array>
#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/shared/resample_axis.h>

namespace thimble::kernels {

/// The inputs of each output: output (oh, ow) sees the inputs (oh stride - padding + k dilation) that exist, for k from
/// 0 to kernel - 1 along each axis. Index 0 is H, index 1 is W.
struct PoolWindows {
  std::int64_t images = 0, channels = 0;
  std::array<std::int64_t, 2> in{}, out{};
  std::array<std::int64_t, 2> kernel{}, stride{}, padding{}, dilation{1, 1};

  std::int64_t taps() const noexcept { return kernel[0] * kernel[1]; }
};

/// The dtype of an index in a window: u8 for up to 255 elements, else i32. The largest value of the dtype marks a
/// window without elements.
constexpr DType pool_tap_dtype(std::int64_t taps) noexcept { return taps <= 255 ? DType::u8 : DType::i32; }

/// y = the largest element of each window, the first in row-major order among equals. NaN is larger than all, and the
/// last NaN wins. A window without elements gives -inf.
struct MaxPoolArgs {
  PoolWindows windows;
  DType dtype = DType::f32;  ///< of x and y
  const void* x = nullptr;
  void* y = nullptr;     ///< may be null
  void* taps = nullptr;  ///< that element's index in the window, in pool_tap_dtype; may be null
};

/// dx[i] = sum of dy over the windows whose largest element i is, in row-major order of the windows.
struct MaxPoolGradArgs {
  PoolWindows windows;
  DType dtype = DType::f32;
  const void* taps = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;
};

/// y = sum of each window in row-major order / divisor: all positions of the window inside the padded image when
/// counts_padding, else inside the image (PyTorch's rules).
struct AveragePoolArgs {
  PoolWindows windows;
  DType dtype = DType::f32;
  bool counts_padding = true;
  const void* x = nullptr;  ///< dy in backward
  void* y = nullptr;        ///< dx in backward
};

/// y[n, c] = mean over rows of x[n, rows, c]: the compute type within a block of `pool_block` rows, f64 across blocks.
struct GlobalAveragePoolArgs {
  std::int64_t images = 0, rows = 0, channels = 0;
  DType dtype = DType::f32;
  const void* x = nullptr;
  void* y = nullptr;
};
inline constexpr std::int64_t pool_block = 64;

/// Resizes images (N, in[0], in[1], C) to (N, out[0], out[1], C): each output is the sum of its inputs times the
/// product of their weights along both axes. Backward sums over the outputs of each input with the same weights.
struct ResampleArgs {
  std::int64_t images = 0, channels = 0;
  std::array<ResampleAxis, 2> axes{};
  DType dtype = DType::f32;
  const void* x = nullptr;  ///< dy in backward
  void* y = nullptr;        ///< dx in backward
};

struct PoolKernels {
  void (*max)(const MaxPoolArgs&) = nullptr;
  void (*max_backward)(const MaxPoolGradArgs&) = nullptr;
  void (*average)(const AveragePoolArgs&) = nullptr;
  void (*average_backward)(const AveragePoolArgs&) = nullptr;
  void (*global_average)(const GlobalAveragePoolArgs&) = nullptr;
  void (*resample)(const ResampleArgs&) = nullptr;
  void (*resample_backward)(const ResampleArgs&) = nullptr;
};

extern const PoolKernels pool_cpu;
extern const PoolKernels* const pool_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const PoolKernels& pool_kernels(memory::Device device);

}  // namespace thimble::kernels
