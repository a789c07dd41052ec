#pragma once
// Convolution and matrix product of 8-bit codes: u8 activations, i8 weights, exact sums in 32 bits, and an epilogue
// that turns the sums into u8 codes or f32.
//
//   run      bytes of an image line that one line of the kernel sees, KW C of them (C, where the kernel is dilated)
//   group    4 bytes of a run (8, where there are at most 8 filters) that one lane of an instruction sums
//   block    64 bytes: one group of 16 filters (two groups of 8)
//   panel    4, 2 or 1 blocks of filters, packed group by group
//   band     lines of one image, or whole small images, whose outputs are computed together; with padding, or where a
//            run is no whole number of groups, its lines are copied between the padding, once for all taps

#include <cstddef>
#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/base/dot_unit.h>

namespace thimble::kernels {

/// A matrix product (M, K) (K, N) is a convolution of M images of one pixel and K channels.
///
///     acc[n, oh, ow, o] = sum over kh, kw, c of weight[o, kh, kw, c] x[n, ih, iw, c]        (exact, 32 bits)
///     v = float(acc + bias[o]) * scale[o] + float(residual - residual_zero) * residual_scale
///     y = clamp(v, low - zero, high - zero), rounded half to even, + zero                   (u8)
///     y = v                                                                                (f32)
///
/// where x is `x_zero` outside the image, and bias contains the zero point's correction: - x_zero sum of weight. Every
/// product and sum of v is rounded to f32. A relu is a clamp with low = zero.
struct QuantConvArgs {
  ConvShape shape;  ///< groups 1
  const std::uint8_t* x = nullptr;
  int x_zero = 0;
  const void* packed = nullptr;        ///< from pack_quant_weight(); aligned to 64
  const std::int32_t* bias = nullptr;  ///< quant_padded_filters() elements, as is scale
  const float* scale = nullptr;
  const std::uint8_t* residual = nullptr;  ///< null, or laid out as y, dense
  float residual_scale = 0;
  int residual_zero = 0;
  void* y = nullptr;                  ///< (N, OH, OW, O), dense
  DType y_dtype = DType::u8;          ///< u8 or f32
  int zero = 0, low = 0, high = 255;  ///< 0 <= low <= zero <= high <= 255
};

/// Limit on the number of runs, quant_runs(): KH, or KH KW where dilation_w is not 1.
inline constexpr std::int64_t quant_max_runs = 64;
std::int64_t quant_runs(const ConvShape& shape) noexcept;

/// Elements of bias and scale: the filters, padded to a multiple of 16.
std::int64_t quant_padded_filters(const ConvShape& shape) noexcept;

/// Bytes of packed weights, which depend only on filters, channels and kernel. All units read one format.
std::size_t quant_packed_bytes(const ConvShape& shape) noexcept;
/// Packs weight (O, KH, KW, C), dense. `packed`: quant_packed_bytes() bytes.
void pack_quant_weight(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept;
void unpack_quant_weight(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept;

/// Bytes of workspace: a pure function of shape and threads. At most 64 KiB per thread, or the lines that one line of
/// the result needs where these take more.
std::size_t quant_conv_workspace_bytes(const ConvShape& shape, int threads) noexcept;

/// Computes `args` with a workspace of quant_conv_workspace_bytes(), aligned to 64. All units and any number of threads
/// give the same bits. Allocates nothing and throws nothing; sums stay below 2^31 for K <= 65793.
void quant_conv(const QuantConvArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

/// A device's kernels. Weights are packed and unpacked in host memory, whatever the device.
struct QuantConvKernels {
  std::size_t (*packed_bytes)(const ConvShape& shape) noexcept = nullptr;
  void (*pack)(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept = nullptr;
  void (*unpack)(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept = nullptr;
  std::size_t (*workspace_bytes)(const ConvShape& shape, int threads) noexcept = nullptr;
  void (*conv)(const QuantConvArgs& args, void* workspace, int threads) = nullptr;
};

extern const QuantConvKernels quant_conv_cpu;
extern const QuantConvKernels* const quant_conv_cuda;  ///< null in a build without CUDA
extern const QuantConvKernels quant_conv_cuda_sizes;   ///< all but `conv` (quant_rows.h), in every build

/// Throws DeviceError when this build has no kernels for the device. A dry device has the sizes of the real one; its
/// `conv` is not called.
const QuantConvKernels& quant_conv_kernels(memory::Device device);

}  // namespace thimble::kernels
