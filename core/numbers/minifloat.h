#pragma once
// The codec of all narrow floating formats: one rounding from float, double or integer, exact decoding.

#include <cstdint>
#include <type_traits>

#include <thimble/core/config.h>
#include <thimble/core/numbers/bits.h>

namespace thimble {

/// The result of values too large for an FP8 format, infinity included. (The 16-bit formats always overflow to
/// infinity, which a gradient scaler detects.)
enum class Fp8Overflow : std::uint8_t {
  nonfinite,  ///< infinity, or NaN if the format has no infinity (E4M3)
  saturate,   ///< the largest finite value, sign kept; NaN stays NaN
};

namespace minifloat {

/// Bit layout of a source type.
template <class Source>
struct Layout;
template <>
struct Layout<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int bias = 127;
};
template <>
struct Layout<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int bias = 1023;
};

/// A sign-magnitude format of 1 + exponent_bits + mantissa_bits bits with gradual underflow and IEEE bias. `max_code`
/// is the largest finite magnitude; the next code is the result of overflow without saturation (infinity, or NaN in a
/// format without infinity). `nan_code` is the only NaN that encoding produces, with the operand's sign.
template <class BitsType, int exponent_bits_, int mantissa_bits_, unsigned max_code_, unsigned nan_code_>
struct Format {
  using Bits = BitsType;
  static constexpr int mantissa_bits = mantissa_bits_;
  static constexpr int bias = (1 << (exponent_bits_ - 1)) - 1;
  static constexpr unsigned sign_bit = 1u << (exponent_bits_ + mantissa_bits_);
  static constexpr unsigned max_code = max_code_;
  static constexpr unsigned nan_code = nan_code_;
  static constexpr bool has_infinity = nan_code_ != max_code_ + 1;

  /// The nearest code, ties to even, in one rounding; keeps the sign even of zero and NaN. Branch-free, so that loops
  /// over it vectorize. Processor modes that flush subnormals do not matter: a subnormal operand enters floating
  /// arithmetic only in sums in which it vanishes, and no result is subnormal.
  template <class Source>
  THIMBLE_HD static constexpr Bits encode(Source value, Fp8Overflow overflow) noexcept {
    using L = Layout<Source>;
    using U = typename L::Bits;
    constexpr int shift = L::mantissa_bits - mantissa_bits;
    constexpr int bias_difference = L::bias - bias;
    constexpr U source_infinity = static_cast<U>(2 * L::bias + 1) << L::mantissa_bits;
    constexpr U source_sign = U{1} << (8 * sizeof(U) - 1);

    const U whole = bit_cast<U>(value);
    const U magnitude = whole & ~source_sign;
    const U sign = (whole >> (8 * sizeof(U) - 1)) * sign_bit;

    // Normal results: round the significand to mantissa_bits (a carry goes into the exponent), then change the bias.
    const U odd = (magnitude >> shift) & 1;
    const U rounded = (magnitude + ((U{1} << (shift - 1)) - 1) + odd) >> shift;
    U code = rounded - (static_cast<U>(bias_difference) << mantissa_bits);
    if constexpr (bias_difference != 0) {
      // Subnormal results: adding a power of two whose last place is the smallest subnormal rounds the sum there.
      constexpr U smallest_normal = static_cast<U>(bias_difference + 1) << L::mantissa_bits;
      constexpr U anchor = static_cast<U>(bias_difference + 1 + shift) << L::mantissa_bits;
      const U small =
          select_if_less(magnitude, smallest_normal, magnitude, U{0});  // no arithmetic with infinity or NaN
      const U subnormal = bit_cast<U>(bit_cast<Source>(small) + bit_cast<Source>(anchor)) - anchor;
      code = select_if_less(magnitude, smallest_normal, subnormal, code);
    }
    const bool saturates = sizeof(Bits) == 1 && overflow == Fp8Overflow::saturate;
    const U too_large = saturates ? max_code : max_code + 1;
    code = select_if_less(code, U{max_code + 1}, code, too_large);
    code = select_if_less(source_infinity, magnitude, U{nan_code}, code);
    return static_cast<Bits>(code | sign);
  }

  /// The exact value. A NaN decodes to a quiet NaN that keeps sign and payload (for bf16 the same bits, moved up).
  THIMBLE_HD static constexpr float decode(Bits bits) noexcept {
    using L = Layout<float>;
    constexpr int shift = L::mantissa_bits - mantissa_bits;
    constexpr int bias_difference = L::bias - bias;
    if constexpr (bias_difference == 0) {
      return bit_cast<float>(static_cast<std::uint32_t>(bits) << shift);
    } else {
      constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(bias_difference + 1) << L::mantissa_bits;
      constexpr std::uint32_t quiet_nan = 0x7FC00000u;
      constexpr std::uint32_t float_infinity = 0x7F800000u;
      const std::uint32_t magnitude = bits & (sign_bit - 1);
      const std::uint32_t sign = static_cast<std::uint32_t>(bits & sign_bit) << (32 - 8 * sizeof(Bits));
      const std::uint32_t moved = magnitude << shift;
      const std::uint32_t normal = moved + (static_cast<std::uint32_t>(bias_difference) << L::mantissa_bits);
      // 2^e (1 + m) - 2^e with the smallest normal's exponent e: exact, and free of float subnormals.
      const std::uint32_t subnormal =
          bit_cast<std::uint32_t>(bit_cast<float>(smallest_normal | moved) - bit_cast<float>(smallest_normal));
      std::uint32_t result = select_if_less(magnitude, std::uint32_t{1} << mantissa_bits, subnormal, normal);
      const std::uint32_t nan = quiet_nan | (moved & 0x007FFFFFu);
      if constexpr (has_infinity) {
        result = select_if_less(magnitude, max_code + 1, result, float_infinity);
        result = select_if_less(magnitude, max_code + 2, result, nan);
      } else {
        result = select_if_less(magnitude, max_code + 1, result, nan);
      }
      return bit_cast<float>(result | sign);
    }
  }
};

/// An integer as a double rounded to odd: the last bit tells whether bits were cut off, so rounding the double to a
/// format of at most 51 bits gives the value nearest to the integer.
template <class Integer>
THIMBLE_HD constexpr double to_odd_double(Integer value) noexcept {
  if constexpr (sizeof(Integer) < 8) {
    return static_cast<double>(value);
  } else {
    bool is_negative = false;
    if constexpr (std::is_signed_v<Integer>) is_negative = value < 0;
    std::uint64_t magnitude = static_cast<std::uint64_t>(value);
    if (is_negative) magnitude = ~magnitude + 1;
    if ((magnitude >> 53) != 0) {
      const bool is_inexact = (magnitude & 0x7FF) != 0;
      magnitude = (magnitude & ~std::uint64_t{0x7FF}) | (is_inexact ? 0x800u : 0u);
    }
    const double rounded = static_cast<double>(magnitude);
    return is_negative ? -rounded : rounded;
  }
}

/// The base of the four types: storage and conversions; arithmetic is in float. Conversions from float, double and
/// integers round once, to nearest even, and overflow to infinity (E4M3: NaN). NaN becomes the format's quiet NaN with
/// the operand's sign. Default construction leaves `bits` unset; `T{}` is zero.
template <class Derived, class FormatType>
struct Value {
  using Format = FormatType;
  using Bits = typename Format::Bits;

  Bits bits;

  Value() = default;
  THIMBLE_HD constexpr explicit Value(float value) noexcept : bits(Format::encode(value, Fp8Overflow::nonfinite)) {}
  THIMBLE_HD constexpr explicit Value(double value) noexcept : bits(Format::encode(value, Fp8Overflow::nonfinite)) {}
  template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
  THIMBLE_HD constexpr explicit Value(Integer value) noexcept
      : bits(Format::encode(to_odd_double(value), Fp8Overflow::nonfinite)) {}

  /// Exact.
  // NOLINTNEXTLINE(google-explicit-constructor): widening loses nothing
  THIMBLE_HD constexpr operator float() const noexcept { return Format::decode(bits); }

  THIMBLE_HD static constexpr Derived from_bits(Bits bits) noexcept {
    Derived result{};
    result.bits = bits;
    return result;
  }
  /// Like the constructors, but values too large, infinities included, become the largest finite value. Only for FP8.
  THIMBLE_HD static constexpr Derived saturate(float value) noexcept requires(sizeof(Bits) == 1) {
    return from_bits(Format::encode(value, Fp8Overflow::saturate));
  }
  THIMBLE_HD static constexpr Derived saturate(double value) noexcept requires(sizeof(Bits) == 1) {
    return from_bits(Format::encode(value, Fp8Overflow::saturate));
  }
  THIMBLE_HD static constexpr Derived max() noexcept { return from_bits(static_cast<Bits>(Format::max_code)); }
  THIMBLE_HD static constexpr Derived quiet_nan() noexcept { return from_bits(static_cast<Bits>(Format::nan_code)); }

  THIMBLE_HD constexpr bool is_nan() const noexcept {
    const unsigned magnitude = bits & (Format::sign_bit - 1);
    return magnitude > Format::max_code + (Format::has_infinity ? 1u : 0u);
  }
};

}  // namespace minifloat
// ---- The two 16-bit formats. Storage types: arithmetic is in float. See minifloat::Format for the conversions.

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. Largest 65504; smallest normal 2^-14, subnormal 2^-24.
/// Encoding any NaN gives 0x7E00 or, with the sign, 0xFE00.
struct f16 : minifloat::Value<f16, minifloat::Format<std::uint16_t, 5, 10, 0x7BFF, 0x7E00>> {
  using Value::Value;
};

/// bfloat16: the upper half of a float, 1 sign, 8 exponent, 7 mantissa bits. Largest 3.3895e38 (0x7F7F); smallest
/// normal 2^-126, subnormal 2^-133; subnormals are kept. Encoding any NaN gives 0x7FC0 or, with the sign, 0xFFC0.
struct bf16 : minifloat::Value<bf16, minifloat::Format<std::uint16_t, 8, 7, 0x7F7F, 0x7FC0>> {
  using Value::Value;
};

// ---- The two 8-bit formats of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022). Storage types: arithmetic
// is in float. See minifloat::Format for the conversions; `saturate` clamps to the largest finite value.

/// E4M3 (the "FN" variant: no infinity, one NaN). Largest 448 (0x7E); smallest normal 2^-6, subnormal 2^-9. Magnitudes
/// up to 464 round to 448; larger ones and infinity become NaN (0x7F, sign kept), with `saturate` 448.
struct f8e4m3 : minifloat::Value<f8e4m3, minifloat::Format<std::uint8_t, 4, 3, 0x7E, 0x7F>> {
  using Value::Value;
};

/// E5M2: the upper half of an f16. Largest 57344 (0x7B); smallest normal 2^-14, subnormal 2^-16. Magnitudes from 61440
/// on become infinity (0x7C), with `saturate` 57344. Encoding any NaN gives 0x7F with the sign kept.
struct f8e5m2 : minifloat::Value<f8e5m2, minifloat::Format<std::uint8_t, 5, 2, 0x7B, 0x7F>> {
  using Value::Value;
};

}  // namespace thimble
