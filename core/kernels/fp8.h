#pragma once
// The FP8 kernel family: scales, codes and their values (core/ops/quant/fp8.h), and products of codes on devices with
// FP8 units. Magnitudes are maxima of integers and elements are independent, so scales and codes have the same bits on
// every device and with any number of threads.

#include <cstddef>
#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/shared/activation.h>

namespace thimble::kernels {

/// The scale of a dense tensor, and the record of its amax.
struct Fp8ScaleArgs {
  const void* values = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::bf16;  ///< floating
  DType code_dtype = DType::f8e4m3;
  int margin = 0;
  const float* known = nullptr;  ///< used unless it is null or holds 0
  float* scale = nullptr;        ///< written
  float* history = nullptr;      ///< `length` entries; null to record nothing
  std::int64_t length = 0;
  float* next_scale = nullptr;
  std::int64_t* steps = nullptr;  ///< two numbers: steps recorded so far, 1 + the last one's number
  std::int64_t step = 0;
};

/// Codes of a dense tensor, and the codes' values; either may be null. `decoded` may be `values` if its dtype is bf16.
struct Fp8CastArgs {
  const void* values = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::bf16;
  DType code_dtype = DType::f8e4m3;
  const float* scale = nullptr;
  std::uint8_t* codes = nullptr;
  bf16* decoded = nullptr;
};

/// Decodes a window of codes to dense bf16, times the scales of its blocks if any.
struct Fp8DecodeArgs {
  const std::uint8_t* codes = nullptr;  ///< of the whole matrix, rows `row_stride` apart
  DType code_dtype = DType::f8e4m3;
  std::int64_t row_stride = 0;
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;  ///< the window
  const std::uint8_t* scales = nullptr;                     ///< UE8M0, row by row of blocks; may be null
  std::int64_t block_rows = 1, block_columns = 1, blocks_across = 1;
  bf16* decoded = nullptr;
};

/// A matrix (rows, columns) transposed: turned[c, r] is the code of values[r, c], and 0 from `rows` on up to
/// turned_stride, a multiple of 16.
struct Fp8TurnArgs {
  const void* values = nullptr;
  DType dtype = DType::bf16;  ///< floating; code_dtype if values are codes already
  std::int64_t rows = 0, columns = 0, row_stride = 0;
  DType code_dtype = DType::f8e4m3;
  const float* scale = nullptr;   ///< null if values are codes
  std::uint8_t* codes = nullptr;  ///< dense (rows, columns), as from fp8_cast; may be null
  std::uint8_t* turned = nullptr;
  std::int64_t turned_stride = 0;
};

/// Block scales (UE8M0) in the layout of a product of codes: to[o * to_stride + i] = scales[o * outer_stride + i *
/// inner_stride] as f32, and 0 for i from `inner` on.
struct Fp8ScaleGrid {
  const std::uint8_t* scales = nullptr;
  std::int64_t outer = 0, inner = 0, outer_stride = 0, inner_stride = 0;
  float* to = nullptr;
  std::int64_t to_stride = 0;
};
/// Places the scales of both operands in one launch.
struct Fp8ScalesArgs {
  Fp8ScaleGrid a, b;
};

/// Values per block scale, along each side.
inline constexpr std::int64_t fp8_block_side = 128;
/// cuBLASLt's layouts of block scales: 1 x 128 scales are contiguous over the rows of the operand, one row of scales
/// for each 128 of the sum; 128 x 128 scales are contiguous along the sum, with rows rounded up to a multiple of 4.
constexpr std::int64_t fp8_sum_blocks(std::int64_t k) noexcept { return (k + fp8_block_side - 1) / fp8_block_side; }
constexpr std::int64_t fp8_square_stride(std::int64_t k) noexcept { return (fp8_sum_blocks(k) + 3) / 4 * 4; }

/// c[i, j] = act(v[i, j]), v[i, j] = a_scale b_scale sum over p of a[i, p] b[j, p] + bias[j]; pre_activation[i, j] =
/// v[i, j] if not null. Both operands are read along the sum, in rows.
struct Fp8GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const std::uint8_t* a = nullptr;  ///< (m, k)
  std::int64_t a_row_stride = 0;
  DType a_dtype = DType::f8e4m3;
  const std::uint8_t* b = nullptr;  ///< (n, k)
  std::int64_t b_row_stride = 0;
  DType b_dtype = DType::f8e4m3;
  bool in_blocks = false;          ///< a has scales of 1 x 128, b of 128 x 128; else each has one
  const float* a_scale = nullptr;  ///< (fp8_sum_blocks(k), m) in blocks
  const float* b_scale = nullptr;  ///< (blocks of n, fp8_square_stride(k)) in blocks
  void* c = nullptr;               ///< (m, n)
  std::int64_t c_row_stride = 0;
  DType c_dtype = DType::bf16;  ///< f32, f16, bf16; of bias and pre_activation as well
  const void* bias = nullptr;   ///< null, or n
  Activation activation = Activation::none;
  void* pre_activation = nullptr;  ///< null, or laid out as c
};

struct Fp8Kernels {
  void (*scale)(const Fp8ScaleArgs&) = nullptr;
  void (*cast)(const Fp8CastArgs&) = nullptr;
  void (*decode)(const Fp8DecodeArgs&) = nullptr;
  /// Null on the CPU, which multiplies bf16 values.
  void (*turn)(const Fp8TurnArgs&) = nullptr;
  void (*place_scales)(const Fp8ScalesArgs&) = nullptr;
  std::size_t (*gemm_workspace_bytes)(const Fp8GemmArgs&) noexcept = nullptr;
  void (*gemm)(const Fp8GemmArgs&, void* workspace) = nullptr;
  /// Whether this build's library supports block scales.
  bool (*library_has_blocks)() noexcept = nullptr;
};

extern const Fp8Kernels fp8_cpu;
extern const Fp8Kernels* const fp8_cuda;  ///< null in a build without CUDA
extern const Fp8Kernels fp8_cuda_sizes;   ///< fp8_cuda's workspace sizes without its kernels, in every build

/// Throws DeviceError when this build has no kernels for the device. A dry device has the sizes of the real one; its
/// kernels are not called.
const Fp8Kernels& fp8_kernels(memory::Device device);

}  // namespace thimble::kernels
