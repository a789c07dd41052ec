#pragma once
// Elementary functions for kernels. The float forms have no branches and calls (only +, -, *, / and bit arithmetic), so
// loops over them vectorize. They give the same bits in every instruction set if the compiler does not contract
// a * b + c (-ffp-contract=off; for CUDA -fmad=false). Errors are in units in the last place of the exact result, by
// comparison with the double functions: of every float where the function bends (for exp and sigmoid 2^-8 <= |x| <=
// 104, log 1/16 .. 16, tanh and erf 2^-6 up to saturation), of every 101st elsewhere. Subnormals are kept, with equal
// errors; NaN gives the operand's NaN, made quiet. The double forms are the standard library's.
//
// The methods are classical (W. J. Cody, W. Waite, "Software Manual for the Elementary Functions", 1980): exact
// argument reduction in two parts, then a minimax polynomial, whose interval and relative error comments give.

#include <cstdint>

#include <thimble/core/config.h>
#include <thimble/core/numbers/bits.h>

// The standard library's function of a double, as a compiler builtin if possible: thimble.h then does without <cmath>,
// whose special functions take longer to parse than all of Thimble's functions.
#if defined(__GNUC__) && !defined(__CUDACC__)
#define THIMBLE_STD_MATH(function) __builtin_##function
#else
#include <cmath>
#define THIMBLE_STD_MATH(function) std::function
#endif

namespace thimble::math {

namespace detail {

inline constexpr std::uint32_t sign_bit = 0x80000000u;
inline constexpr std::uint32_t infinity_bits = 0x7F800000u;
inline constexpr std::uint32_t quiet_bit = 0x00400000u;

// ln 2 in two parts; n * ln2_high is exact for |n| < 512.
inline constexpr float ln2_high = 0x1.62e4p-1f;
inline constexpr float ln2_low = 0x1.7f7d1cp-20f;

THIMBLE_HD inline std::uint32_t bits_of(float x) noexcept { return bit_cast<std::uint32_t>(x); }
THIMBLE_HD inline float from_bits(std::uint32_t bits) noexcept { return bit_cast<float>(bits); }
THIMBLE_HD inline std::uint32_t magnitude_of(float x) noexcept { return bits_of(x) & ~sign_bit; }

/// The result, or x made quiet if it is NaN.
THIMBLE_HD inline float unless_nan(float x, std::uint32_t result) noexcept {
  return from_bits(select_if_less(infinity_bits, magnitude_of(x), bits_of(x) | quiet_bit, result));
}

/// min(|x|, limit) with the sign of x, for a limit > 0; NaN gives the limit.
THIMBLE_HD inline float clamp_magnitude(float x, float limit) noexcept {
  const std::uint32_t magnitude = magnitude_of(x), most = bits_of(limit);
  return from_bits((magnitude < most ? magnitude : most) | (bits_of(x) & sign_bit));
}

/// e^x = value * 2^exponent.
struct Exponential {
  float value;
  std::int32_t exponent;
};

/// For |x| <= 104.
THIMBLE_HD inline Exponential exp_parts(float x) noexcept {
  // n = nearest integer to x / ln 2: adding 1.5 * 2^23 leaves it in the low bits.
  constexpr float shifter = 0x1.8p23f;
  const float shifted = x * 0x1.715476p0f + shifter;
  const float n = shifted - shifter;
  const float r = (x - n * ln2_high) - n * ln2_low;  // |r| <= ln(2) / 2
  // e^r = 1 + r + r^2 q(r), 2^-28.3.
  float q = 0x1.6a2432p-10f;
  q = q * r + 0x1.1239e2p-7f;
  q = q * r + 0x1.5558f2p-5f;
  q = q * r + 0x1.555492p-3f;
  q = q * r + 0x1.fffffcp-2f;
  return {(r * r * q + r) + 1.0f, static_cast<std::int32_t>(bits_of(shifted) - bits_of(shifter))};
}

/// e^x; NaN gives some number.
THIMBLE_HD inline float exp_of_number(float x) noexcept {
  // Beyond 104 the result is infinity or zero; |exponent| <= 150 from here on.
  const Exponential e = exp_parts(clamp_magnitude(x, 104.0f));
  // 2^exponent in two factors, each a normal number: only the second product may overflow or round to a subnormal.
  const std::int32_t half = e.exponent >> 1;
  const float first = from_bits(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = from_bits(static_cast<std::uint32_t>(e.exponent - half + 127) << 23);
  return e.value * first * second;
}

/// e^x for |x| <= 87, where the result is a normal number.
THIMBLE_HD inline float exp_of_moderate(float x) noexcept {
  const Exponential e = exp_parts(x);
  return e.value * from_bits(static_cast<std::uint32_t>(e.exponent + 127) << 23);
}

/// e^-a for the bits of a number a >= 0: the bits of exp_of_number(-a) in fewer steps. 2^exponent is in two factors, of
/// which the second is constant.
THIMBLE_HD inline float exp_of_negative(std::uint32_t a) noexcept {
  constexpr std::uint32_t most = 0x42D00000u;  // 104
  const Exponential e = exp_parts(-from_bits(a < most ? a : most));
  return e.value * from_bits(static_cast<std::uint32_t>(e.exponent + 127 + 64) << 23) * 0x1p-64f;
}

/// The bits of sigmoid(x), for processors with slow divisions and fast fused multiply-adds: `reciprocal` is 1 / (1 +
/// e^-|x|) within 2 units in the last place. A Newton step makes it exact to half a unit, except below 2, and the
/// quotient's remainder rounds it as a division does (tests/cuda/cuda_words_test.cpp).
THIMBLE_HD inline float sigmoid_by(float x, float reciprocal) noexcept {
  const float e = exp_of_negative(magnitude_of(x)), d = 1.0f + e;
  float r = __builtin_fmaf(reciprocal, __builtin_fmaf(-d, reciprocal, 1.0f), reciprocal);
  r = d == 0x1.fffffep+0f ? 0x1.000002p-1f : r;
  const float n = bits_of(x) >> 31 != 0 ? e : 1.0f, q = n * r;
  return unless_nan(x, bits_of(__builtin_fmaf(__builtin_fmaf(-d, q, n), r, q)));
}

}  // namespace detail

/// e^x. Error < 1 ulp (largest found: 0.98); infinity from 88.72284 on, subnormal below -87.33655, zero below
/// -103.97208.
THIMBLE_HD inline float exp(float x) noexcept {
  return detail::unless_nan(x, detail::bits_of(detail::exp_of_number(x)));
}
THIMBLE_HD inline double exp(double x) noexcept { return THIMBLE_STD_MATH(exp)(x); }

/// Natural logarithm. Error < 1 ulp (largest found: 0.86); log(+-0) = -infinity, NaN for x < 0.
THIMBLE_HD inline float log(float x) noexcept {
  using namespace detail;
  constexpr std::uint32_t smallest_normal = 0x00800000u;
  constexpr std::uint32_t sqrt_half = 0x3F3504F3u;
  const std::uint32_t magnitude = magnitude_of(x);
  // x = 2^k m with sqrt(1/2) <= m < sqrt(2); subnormals are scaled by 2^23 first.
  const std::uint32_t scaled = select_if_less(magnitude, smallest_normal, bits_of(x * 0x1p23f), bits_of(x));
  const std::uint32_t from_sqrt_half = scaled - sqrt_half;
  const std::uint32_t lifted = select_if_less(magnitude, smallest_normal, 23u, 0u);
  const float k =
      static_cast<float>((static_cast<std::int32_t>(from_sqrt_half) >> 23) - static_cast<std::int32_t>(lifted));
  const float f = from_bits((from_sqrt_half & 0x007FFFFFu) + sqrt_half) - 1.0f;
  // log(1 + f) = f - f^2 / 2 + f^3 q(f), 2^-27.3.
  float q = -0x1.38b594p-4f;
  q = q * f + 0x1.055b6ep-3f;
  q = q * f + -0x1.0d853ep-3f;
  q = q * f + 0x1.22da1cp-3f;
  q = q * f + -0x1.547244p-3f;
  q = q * f + 0x1.99a008p-3f;
  q = q * f + -0x1.000226p-2f;
  q = q * f + 0x1.555554p-2f;
  const float square = f * f;
  const float tail = (f * square * q + k * ln2_low) - 0.5f * square;
  std::uint32_t result = bits_of((f + tail) + k * ln2_high);
  result = select_if_less(magnitude, infinity_bits, result, infinity_bits);
  const std::uint32_t if_negative = std::uint32_t{0} - (bits_of(x) >> 31);
  result = (result & ~if_negative) | ((infinity_bits | quiet_bit) & if_negative);
  result = select_if_less(magnitude, 1u, infinity_bits | sign_bit, result);
  return unless_nan(x, result);
}
THIMBLE_HD inline double log(double x) noexcept { return THIMBLE_STD_MATH(log)(x); }

/// Hyperbolic tangent. Error < 2 ulp (largest found: 1.34); odd, +-1 from |x| = 9.011 on.
THIMBLE_HD inline float tanh(float x) noexcept {
  using namespace detail;
  const std::uint32_t magnitude = magnitude_of(x);
  const float a = from_bits(magnitude);
  // tanh(a) = a + a z q(z), z = a^2, a < 0.625, 2^-27.8.
  const float z = a * a;
  float q = -0x1.75e1e8p-8f;
  q = q * z + 0x1.5226a2p-6f;
  q = q * z + -0x1.b83c5ap-5f;
  q = q * z + 0x1.110726p-3f;
  q = q * z + -0x1.555532p-2f;
  const float near = a + a * z * q;
  const float far = 1.0f - 2.0f / (exp_of_moderate(clamp_magnitude(a + a, 40.0f)) + 1.0f);
  const std::uint32_t result = select_if_less(magnitude, bits_of(0.625f), bits_of(near), bits_of(far));
  return unless_nan(x, result | (bits_of(x) & sign_bit));
}
THIMBLE_HD inline double tanh(double x) noexcept { return THIMBLE_STD_MATH(tanh)(x); }

/// Error function 2 / sqrt(pi) * integral of e^(-t^2) from 0 to x. Error < 2 ulp (largest found: 1.44); odd, +-1 from
/// |x| = 3.9192 on.
THIMBLE_HD inline float erf(float x) noexcept {
  using namespace detail;
  const std::uint32_t magnitude = magnitude_of(x);
  const float a = from_bits(magnitude);
  // erf(a) = a + a q(z), z = a^2, a < 0.921875, 2^-25.9.
  const float z = a * a;
  float q = -0x1.3a17eep-11f;
  q = q * z + 0x1.473bacp-8f;
  q = q * z + -0x1.b68b54p-6f;
  q = q * z + 0x1.ce1a6ap-4f;
  q = q * z + -0x1.8126e6p-2f;
  q = q * z + 0x1.06eba6p-3f;
  const float near = a + a * q;
  // erf(a) = 1 - e^p(a), 0.92 <= a <= 4, 2^-29.3 of the result.
  const float c = clamp_magnitude(a, 4.0f);
  float p = 0x1.9ae812p-13f;
  p = p * c + -0x1.8ee0e4p-9f;
  p = p * c + 0x1.6c2a34p-6f;
  p = p * c + -0x1.a9b40ep-4f;
  p = p * c + -0x1.463cc4p-1f;
  p = p * c + -0x1.20af58p+0f;
  p = p * c + -0x1.9a6606p-13f;
  const float far = 1.0f - exp_of_moderate(p);
  const std::uint32_t result = select_if_less(magnitude, bits_of(0.921875f), bits_of(near), bits_of(far));
  return unless_nan(x, result | (bits_of(x) & sign_bit));
}
THIMBLE_HD inline double erf(double x) noexcept { return THIMBLE_STD_MATH(erf)(x); }

/// ln(1 + e^-|x|), by which ln(1 + e^x) exceeds max(x, 0). Error < 3 ulp (largest found: 2.06).
THIMBLE_HD inline float softplus_rest(float x) noexcept {
  using namespace detail;
  const float e = exp_of_negative(magnitude_of(x)), sum = 1.0f + e;
  // Adds the rounding error of the sum, times the logarithm's slope 1 / (1 + e), within 0.05 ln(1 + e).
  const float slope = (0.485f * e + -0.95f) * e + 1.0f;
  return unless_nan(x, bits_of(log(sum) + (e - (sum - 1.0f)) * slope));
}
THIMBLE_HD inline double softplus_rest(double x) noexcept {
  return THIMBLE_STD_MATH(log1p)(THIMBLE_STD_MATH(exp)(-THIMBLE_STD_MATH(fabs)(x)));
}

/// x if |a| < b, else y, also if a is NaN. The float form has no branch, so that loops over it vectorize
/// (select_if_less).
template <class T>
THIMBLE_HD inline T select_if_near(T a, T b, T x, T y) noexcept {
  return a < b && T(0) - a < b ? x : y;
}
THIMBLE_HD inline float select_if_near(float a, float b, float x, float y) noexcept {
  using namespace detail;
  return from_bits(select_if_less(magnitude_of(a), bits_of(b), bits_of(x), bits_of(y)));
}

/// x if a is 0, else y; also without a branch.
template <class T>
THIMBLE_HD inline T select_if_zero(T a, T x, T y) noexcept {
  return a == T(0) ? x : y;
}
THIMBLE_HD inline float select_if_zero(float a, float x, float y) noexcept {
  using namespace detail;
  return from_bits(select_if_less(magnitude_of(a), 1u, bits_of(x), bits_of(y)));
}

/// The standard normal distribution at x.
template <class T>
struct Normal {
  T cdf;   ///< integral of e^(-t^2/2) / sqrt(2 pi) from -infinity to x
  T bell;  ///< e^(-x^2/2)
};

/// Relative errors grow with x^2, which is rounded before it becomes an exponent. Largest found (every 37th float): cdf
/// 5.7e-7 for |x| < 4, 1.2e-6 below 8, 4.1e-6 below 13; bell 3.1e-7, 1.0e-6, 3.9e-6. From |x| = 13.2 on, bell stays at
/// e^-87. NaN gives NaN in cdf.
THIMBLE_HD inline Normal<float> normal(float x) noexcept {
  using namespace detail;
  const float a = from_bits(magnitude_of(x));
  const float bell = exp_of_moderate(-clamp_magnitude(0.5f * x * x, 87.0f));
  // cdf(-a) = bell t q(t), t = 1 / (1 + 0.26 a), 2^-25.3 of the result.
  const float t = 1.0f / (1.0f + 0.26f * a);
  float q = 0x1.f3cbcap-6f;
  q = q * t + -0x1.38feeap-3f;
  q = q * t + 0x1.018786p-2f;
  q = q * t + -0x1.352602p-3f;
  q = q * t + 0x1.499fdep-3f;
  q = q * t + 0x1.a20378p-5f;
  q = q * t + 0x1.a60336p-4f;
  q = q * t + 0x1.a5f4dep-4f;
  q = q * t + 0x1.a8ff42p-4f;
  const float tail = bell * (t * q);
  const std::uint32_t if_negative = std::uint32_t{0} - (bits_of(x) >> 31);
  const std::uint32_t cdf = (bits_of(tail) & if_negative) | (bits_of(1.0f - tail) & ~if_negative);
  return {from_bits(cdf), bell};
}
THIMBLE_HD inline Normal<double> normal(double x) noexcept {
  return {0.5 * THIMBLE_STD_MATH(erfc)(x * -0.7071067811865476), THIMBLE_STD_MATH(exp)(-0.5 * x * x)};
}

/// 1 / (1 + e^-x). Error < 3 ulp (largest found: 2.41), also for small results: e^x / (1 + e^x) for x < 0.
THIMBLE_HD inline float sigmoid(float x) noexcept {
  using namespace detail;
#if defined(__CUDA_ARCH__)
  float reciprocal;
  const float denominator = 1.0f + exp_of_negative(magnitude_of(x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(denominator));
  return sigmoid_by(x, reciprocal);
#else
  const std::uint32_t if_negative = std::uint32_t{0} - (bits_of(x) >> 31);
  const float e = exp_of_negative(magnitude_of(x));
  const float numerator = from_bits((bits_of(e) & if_negative) | (bits_of(1.0f) & ~if_negative));
  return unless_nan(x, bits_of(numerator / (1.0f + e)));
#endif
}
THIMBLE_HD inline double sigmoid(double x) noexcept {
  const double e = THIMBLE_STD_MATH(exp)(-THIMBLE_STD_MATH(fabs)(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}

/// A number type with these functions as members, for device kernels.
template <class T>
concept OwnFunctions = requires(T x) {
  x.sigmoid();
};
template <OwnFunctions T>
THIMBLE_HD inline T exp(T x) noexcept {
  return x.exp();
}
template <OwnFunctions T>
THIMBLE_HD inline T log(T x) noexcept {
  return x.log();
}
template <OwnFunctions T>
THIMBLE_HD inline T tanh(T x) noexcept {
  return x.tanh();
}
template <OwnFunctions T>
THIMBLE_HD inline T erf(T x) noexcept {
  return x.erf();
}
template <OwnFunctions T>
THIMBLE_HD inline Normal<T> normal(T x) noexcept {
  return x.normal();
}
template <OwnFunctions T>
THIMBLE_HD inline T sigmoid(T x) noexcept {
  return x.sigmoid();
}
template <OwnFunctions T>
THIMBLE_HD inline T softplus_rest(T x) noexcept {
  return x.softplus_rest();
}

}  // namespace thimble::math

#undef THIMBLE_STD_MATH
