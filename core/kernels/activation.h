#pragma once
// Activations that matmul and convolution can apply to their result, as scalar code that vectorizes: no branches, no
// calls, so that every instruction set gives the same bits (-ffp-contract=off).

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/isa.h>

namespace thimble::kernels {

enum class Activation : std::uint8_t {
  none,
  relu,       ///< max(x, 0); NaN stays NaN
  gelu_tanh,  ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))   (Hendrycks and Gimpel 2016, section 2)
  gelu_erf,   ///< x / 2 (1 + erf(x / sqrt(2)))
};

namespace activation_detail {

/// e^x for x clamped to [-87, 88], relative error below 2e-7: 2^n e^r with |r| <= ln(2) / 2 and a minimax polynomial.
THIMBLE_ALWAYS_INLINE float exp_clamped(float x) noexcept {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: the sum's last place is 1
  const float shifted = x * 1.44269504f + round_to_integer;
  const float n = shifted - round_to_integer;
  // ln(2) in two parts; n times the first is exact.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float tail = 0.49999994f + r * (0.16666520f + r * (0.041668396f + r * (0.0083687864f + r * 0.0013814402f)));
  const float fraction = 1.0f + (r + (r * r) * tail);
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round_to_integer);
  return fraction * std::bit_cast<float>((exponent + 127u) << 23);
}

/// erf(x), absolute error below 2e-7: an odd minimax polynomial up to 1, above it 1 - exp of one for log(erfc).
THIMBLE_ALWAYS_INLINE float erf_fast(float x) noexcept {
  const float t = x * x;
  const float inner =
      x * (1.12837917f +
           t * (-0.376126258f +
                t * (0.112835851f +
                     t * (-0.0268538116f + t * (0.00518832698f + t * (-0.000801018746f + t * 7.85384099e-05f))))));
  const float magnitude = x < 0.0f ? -x : x;
  const float m = magnitude > 4.0f ? 4.0f : magnitude;  // erf(4) rounds to 1
  const float log_erfc =
      -0.000353662576f +
      m * (-1.12704027f + m * (-0.638225276f +
                               m * (-0.103037725f + m * (0.021805493f + m * (-0.00293965208f + m * 0.000185578695f)))));
  const float outer = 1.0f - exp_clamped(log_erfc);
  return magnitude > 1.0f ? (x < 0.0f ? -outer : outer) : inner;
}

}  // namespace activation_detail

/// gelu in both forms. Absolute error below 1e-6 max(1, |x|) in float; double uses the standard library.
template <class T>
THIMBLE_ALWAYS_INLINE T gelu_tanh(T x) noexcept {
  constexpr T twice_root = static_cast<T>(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
  const T z = twice_root * (x + static_cast<T>(0.044715) * ((x * x) * x));
  // (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z)
  if constexpr (std::is_same_v<T, float>) {
    return x / (1.0f + activation_detail::exp_clamped(-z));
  } else {
    return x / (T{1} + std::exp(-z));
  }
}

template <class T>
THIMBLE_ALWAYS_INLINE T gelu_erf(T x) noexcept {
  const T z = x * static_cast<T>(0.70710678118654752440084436210485);
  if constexpr (std::is_same_v<T, float>) {
    return (0.5f * x) * (1.0f + activation_detail::erf_fast(z));
  } else {
    return (T{0.5} * x) * (T{1} + std::erf(z));
  }
}

}  // namespace thimble::kernels
