#pragma once
// The kernels other than convolution of a net of 8-bit codes: codes from numbers and back, pools, means and sums. A
// code q represents (q - zero) scale. Numbers are computed in f32, each operation rounded separately, and become codes
// by rounding half to even and clamping to low .. high. The bits do not depend on instruction set or threads.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/pool.h>

namespace thimble::kernels {

/// How codes represent numbers; 0 <= low <= zero <= high <= 255.
struct CodeScale {
  float scale = 1;
  int zero = 0, low = 0, high = 255;
};

/// y = code of x. False, with y undefined, when a number is not finite.
bool quantize_codes(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y) noexcept;

void dequantize_codes(const std::uint8_t* x, std::int64_t count, const CodeScale& from, float* y) noexcept;

/// The largest code of each window. Codes grow with the numbers, so this is exact.
void max_pool_codes(const std::uint8_t* x, const PoolWindows& windows, std::uint8_t* y) noexcept;

/// x (N, P, C) -> y (N, C): the code of (sum over p of (x - from.zero)) * (from.scale / (to.scale P)).
void mean_codes(const std::uint8_t* x, std::int64_t images, std::int64_t pixels, std::int64_t channels,
                const CodeScale& from, const CodeScale& to, std::uint8_t* y) noexcept;

/// y = code of a + b. A relu is a `to` with low = zero.
void add_codes(const std::uint8_t* a, const CodeScale& of_a, const std::uint8_t* b, const CodeScale& of_b,
               std::int64_t count, const CodeScale& to, std::uint8_t* y) noexcept;

/// y = max(x, zero).
void relu_codes(const std::uint8_t* x, std::int64_t count, int zero, std::uint8_t* y) noexcept;

/// A device's kernels: the functions above, in its memory.
struct QuantCodeKernels {
  /// *not_finite becomes 1 where a number is not finite, else 0.
  void (*quantize)(const float* x, std::int64_t count, const CodeScale& to, std::uint8_t* y,
                   std::int32_t* not_finite) = nullptr;
  void (*dequantize)(const std::uint8_t* x, std::int64_t count, const CodeScale& from, float* y) = nullptr;
  void (*max_pool)(const std::uint8_t* x, const PoolWindows& windows, std::uint8_t* y) = nullptr;
  void (*mean)(const std::uint8_t* x, std::int64_t images, std::int64_t pixels, std::int64_t channels,
               const CodeScale& from, const CodeScale& to, std::uint8_t* y) = nullptr;
  void (*add)(const std::uint8_t* a, const CodeScale& of_a, const std::uint8_t* b, const CodeScale& of_b,
              std::int64_t count, const CodeScale& to, std::uint8_t* y) = nullptr;
  void (*relu)(const std::uint8_t* x, std::int64_t count, int zero, std::uint8_t* y) = nullptr;
  /// Dense rows of `columns` codes to rows that begin `stride` codes apart.
  void (*copy_rows)(const std::uint8_t* x, std::int64_t rows, std::int64_t columns, std::uint8_t* y,
                    std::int64_t stride) = nullptr;
};

extern const QuantCodeKernels quant_codes_cpu;
extern const QuantCodeKernels* const quant_codes_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const QuantCodeKernels& quant_code_kernels(memory::Device device);

/// Weight (filters, elements), f32 or f64, to codes within +-127 and a scale for each filter: amax / 127, of the filter
/// or (with `is_per_tensor`) of all. If `least` is given, a scale is at least least[filter]. A filter of zeros has
/// scale 1 unless `least` sets it. False when a number is not finite.
bool quantize_weight_codes(const void* weight, DType dtype, std::int64_t filters, std::int64_t elements,
                           bool is_per_tensor, const float* least, std::int8_t* codes, float* scales) noexcept;

}  // namespace thimble::kernels
