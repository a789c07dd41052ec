#pragma once
// Weights of 8-bit nets as CUDA kernels read them, and the kernels' workspaces: known in every build.
//
//   packed   (O, depth) i8, rows along the sum: (kh, kw, c) as in the dense weight, zeros from KH KW C on up to depth,
//            a multiple of 16; behind them (O) i32, 128 times the sum of each row
//
// IMMA multiplies i8 by i8: it takes x - 128 for u8 codes x, and 128 times the sum of w is added to each result.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/quant_conv.h>

namespace thimble::kernels::quant_detail {

// ---- Numbers to codes in a net of 8-bit codes (quant_codes.h, quant_conv.h), shared by all devices.

/// The code of v: adding 1.5 2^23 leaves no bits for a fraction, so the sum is rounded, half to even.
THIMBLE_HD inline std::uint8_t quant_code(float v, int zero, int low, int high) noexcept {
  constexpr float shift = 12582912.0F;
  const auto least = static_cast<float>(low - zero), most = static_cast<float>(high - zero);
  v = v < least ? least : v;
  v = v > most ? most : v;
  return static_cast<std::uint8_t>(static_cast<int>((v + shift) - shift) + zero);
}
THIMBLE_HD inline std::uint8_t quant_code(float v, const CodeScale& to) noexcept {
  return quant_code(v, to.zero, to.low, to.high);
}

/// The code of a number; NaN becomes the code of 0, and the caller reports it.
THIMBLE_HD inline std::uint8_t code_of(float x, const CodeScale& to) noexcept {
  const float v = x / to.scale;
  return quant_code(v == v ? v : 0.0F, to);
}

/// Stores y[at] of filter o, given the sum of the products and the bias.
THIMBLE_HD inline void store_quant_conv(const QuantConvArgs& a, std::int64_t at, std::int64_t o,
                                        std::int32_t sum) noexcept {
  float v = static_cast<float>(sum) * a.scale[o];
  if (a.residual != nullptr) v += static_cast<float>(a.residual[at] - a.residual_zero) * a.residual_scale;
  if (a.y_dtype == DType::f32) {
    static_cast<float*>(a.y)[at] = v;
  } else {
    static_cast<std::uint8_t*>(a.y)[at] = quant_code(v, a.zero, a.low, a.high);
  }
}

}  // namespace thimble::kernels::quant_detail

namespace thimble::kernels {

/// Limit of the workspace of cuBLASLt's products.
inline constexpr std::int64_t max_quant_workspace_bytes = std::int64_t{32} << 20;

std::int64_t quant_rows_depth(const ConvShape& shape) noexcept;
std::size_t quant_rows_bytes(const ConvShape& shape) noexcept;
void pack_quant_rows(const ConvShape& shape, const std::int8_t* weight, void* packed) noexcept;
void unpack_quant_rows(const ConvShape& shape, const void* packed, std::int8_t* weight) noexcept;

/// True where the convolution is a matrix product that cuBLASLt supports for i8: one tap, every pixel, no padding,
/// channels and filters in multiples of 16 (its TN layout needs only multiples of 4). Depends only on the shape.
bool is_library_quant_conv(const ConvShape& shape) noexcept;

/// Pixels that cuBLASLt multiplies at once: all that fit in the workspace, at least 16.
std::int64_t quant_window_rows(const ConvShape& shape) noexcept;

/// Bytes of these pixels' i8 codes and i32 sums, up to max_quant_workspace_bytes; 0 where the library is not used.
std::size_t cuda_quant_conv_bytes(const ConvShape& shape, int threads) noexcept;

}  // namespace thimble::kernels
