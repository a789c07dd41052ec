#pragma once
// Numbers to codes in a net of 8-bit codes (quant_codes.h, quant_conv.h), shared by all devices.

#include <cstdint>

#include <thimble/core/kernels/quant_codes.h>
#include <thimble/core/kernels/quant_conv.h>

namespace thimble::kernels::quant_detail {

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

/// The code of a number; NaN becomes 0's code, and an error outside.
THIMBLE_HD inline std::uint8_t code_of(float x, const CodeScale& to) noexcept {
  const float v = x / to.scale;
  return quant_code(v == v ? v : 0.0F, to);
}

/// y[at] of filter o, from the sum of products with the bias.
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
