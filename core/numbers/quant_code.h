#pragma once
// Codes of numbers divided by their block's scale (core/ops/quant/quantize.h), shared by all devices. Branch-free, so
// that loops over them vectorize; the same bits in every instruction set.
//
//   code                values                                                  largest
//   Int8Code            -127 .. 127, nearest, ties to even; symmetric, no -128  127
//   Float8Code<F>       as f8e4m3, f8e5m2, nearest even, saturating             448, 57344
//   DynamicCode<true>   256 in [-0.993, 1], see DynamicTable                    1
//   DynamicCode<false>  256 in [0, 1]; negative values become 0                 1

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <thimble/core/dtype.h>

namespace thimble::quant {

/// Dynamic codes (Dettmers et al. 2022, arXiv:2110.02861, sections 1.3 and 2.2; the tree data type is Dettmers 2016).
/// The number e of leading zero bits gives the decade [0.1, 1) 10^-e; after the first one bit, the other bits select
/// one of equal intervals of the decade, and the value is the interval's middle. A signed code has a sign bit, and so
/// 2^(6 - e) intervals in decade e = 0 .. 6; an unsigned code has 2^(7 - e). 0 and 1 are values too, -1 is not. Codes
/// are numbered in ascending order of their values, so 0 is code 127 if signed, code 0 if unsigned.
struct DynamicTable {
  static constexpr int mantissa_bits = 7;  // of a bucket, so that no bucket has two borders in it (tested)
  static constexpr std::uint32_t shift = 23 - mantissa_bits;
  static constexpr std::uint32_t first_bucket = (127u - 23u) << mantissa_bits;  // of 2^-23, below all borders
  static constexpr std::uint32_t first_bits = first_bucket << shift, one_bits = 127u << 23, width = 1u << shift;
  static constexpr int buckets = static_cast<int>((one_bits >> shift) - first_bucket) + 1;

  std::array<float, 256> values;  ///< by code
  int magnitudes;                 ///< number of distinct magnitudes: 129 signed, 256 unsigned
  std::array<std::uint32_t, buckets>
      places;  ///< by bucket: a number that plus a float's bits is the index of its magnitude, << shift, and more
};

/// The table of the signed or the unsigned codes.
const DynamicTable& dynamic_table(bool is_signed) noexcept;

struct Int8Code {
  using Bits = std::int8_t;
  static constexpr float largest = 127.0f;
  /// Clamps to +-127; x must not be NaN.
  THIMBLE_HD Bits encode(float x) const noexcept {
    x = x < largest ? x : largest;
    x = x > -largest ? x : -largest;
    constexpr float shifter = 0x1.8p23f;  // the sum's last bits are the nearest integer
    return static_cast<Bits>(static_cast<std::uint8_t>(bit_cast<std::uint32_t>(x + shifter)));
  }
  THIMBLE_HD float decode(Bits code) const noexcept { return static_cast<float>(code); }
};

template <class F>
struct Float8Code {
  using Bits = std::uint8_t;
  static constexpr float largest = F::Format::max_code == 0x7E ? 448.0f : 57344.0f;
  THIMBLE_HD Bits encode(float x) const noexcept { return F::Format::encode(x, Fp8Overflow::saturate); }
  THIMBLE_HD float decode(Bits code) const noexcept { return F::Format::decode(code); }
};

template <bool is_signed>
struct DynamicCode {
  using Bits = std::uint8_t;
  static constexpr float largest = 1.0f;
  const DynamicTable* table;

  /// The nearest value, ties to the larger magnitude. NaN gives some code.
  THIMBLE_HD Bits encode(float x) const noexcept {
    const auto bits = bit_cast<std::uint32_t>(x);
    std::uint32_t magnitude, bucket, code;
    find(bits, magnitude, bucket);
    finish(bits, magnitude, table->places[bucket], code);
    return static_cast<Bits>(code);
  }

  // The steps of encode() before and after the look-up, for numbers or vectors.
  template <class U>
  THIMBLE_HD static void find(const U& bits, U& magnitude, U& bucket) noexcept {
    const U first = U{} + DynamicTable::first_bits, one = U{} + DynamicTable::one_bits;
    magnitude = is_signed ? bits & 0x7FFFFFFFu : bits;
    magnitude = magnitude > one ? one : magnitude;
    magnitude = magnitude > first ? magnitude : first;
    bucket = (magnitude >> DynamicTable::shift) - DynamicTable::first_bucket;
  }
  template <class U>
  THIMBLE_HD static void finish(const U& bits, const U& magnitude, const U& place, U& code) noexcept {
    const U if_negative = U{} - (bits >> 31);
    code = (place + magnitude) >> DynamicTable::shift;
    if constexpr (is_signed) {
      const U most = if_negative + 128u;  // no -1
      code = code < most ? code : most;
      code = (code ^ if_negative) + (127u - if_negative);
    } else {
      code &= ~if_negative;
    }
  }
  THIMBLE_HD float decode(Bits code) const noexcept { return table->values[code]; }
};

/// The scale of a block, and its inverse.
struct BlockScale {
  float scale;
  float inverse;
  bool is_finite;  ///< false if a value is NaN or infinite: the scale is NaN, and the codes are 0
};

inline constexpr std::uint32_t infinity_bits = 0x7F800000u;
inline constexpr float largest_f32 = 0x1.FFFFFEp127f;
inline constexpr float smallest_scale = 0x1p-126f;  // the inverse of a smaller scale could overflow

/// `amax_bits` are the bits of the largest magnitude. Zero gives scale 0 and inverse 0.
THIMBLE_HD inline BlockScale block_scale(std::uint32_t amax_bits, float largest, DType scale_dtype) noexcept {
  if (amax_bits >= infinity_bits) return {bit_cast<float>(0x7FC00000u), 0.0f, false};
  if (amax_bits == 0) return {0.0f, 0.0f, true};
  float scale = bit_cast<float>(amax_bits) / largest;
  scale = scale > smallest_scale ? scale : smallest_scale;
  if (scale_dtype == DType::f16) scale = scale < 65504.0f ? scale : 65504.0f;
  if (scale_dtype == DType::u8) {  // the next power of two, unless `largest` times it exceeds f32
    const std::uint32_t bits = bit_cast<std::uint32_t>(scale);
    const std::uint32_t most = bit_cast<std::uint32_t>(largest_f32 / largest) >> 23;
    const std::uint32_t up = (bits & 0x007FFFFFu) != 0 && (bits >> 23) < most ? 1u : 0u;
    scale = bit_cast<float>(((bits >> 23) + up) << 23);
  }
  return {scale, 1.0f / scale, true};
}

/// Stores a scale as element `i` of an array of `dtype`: f32, f16, or u8 for the exponent of a power of two (UE8M0: 255
/// is NaN; 0 is 2^-127, also used for scale 0, whose codes are all 0).
THIMBLE_HD inline void store_scale(float scale, void* scales, DType dtype, std::int64_t i) noexcept {
  if (dtype == DType::f32) {
    static_cast<float*>(scales)[i] = scale;
  } else if (dtype == DType::f16) {
    static_cast<f16*>(scales)[i] = f16(scale);
  } else {
    static_cast<std::uint8_t*>(scales)[i] = static_cast<std::uint8_t>((bit_cast<std::uint32_t>(scale) >> 23) & 0xFFu);
  }
}

THIMBLE_HD inline float load_scale(const void* scales, DType dtype, std::int64_t i) noexcept {
  if (dtype == DType::f32) return static_cast<const float*>(scales)[i];
  if (dtype == DType::f16) return static_cast<const f16*>(scales)[i];
  const std::uint32_t exponent = static_cast<const std::uint8_t*>(scales)[i];
  if (exponent == 0) return 0.0f;
  return exponent == 255 ? bit_cast<float>(0x7FC00000u) : bit_cast<float>(exponent << 23);
}

// ---- The table of dynamic codes as a constant expression, of which each device keeps a copy.

constexpr DynamicTable make_dynamic_table(bool is_signed) noexcept {
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  DynamicTable table{};
  std::array<double, 256> magnitudes{};  // ascending from 0
  std::array<float, 256> borders{};      // the least float of the next magnitude
  std::size_t count = 1;
  for (std::size_t e = 0; e < 7; ++e) {
    const int parts = 1 << (e + (is_signed ? 0 : 1));
    for (int k = 0; k < parts; ++k) magnitudes[count++] = decades[e] * (0.1 + 0.9 * (2 * k + 1) / (2.0 * parts));
  }
  magnitudes[count++] = 1;
  table.magnitudes = static_cast<int>(count);
  for (std::size_t m = 0; m < count; ++m) {
    const auto value = static_cast<float>(magnitudes[m]);
    table.values[is_signed ? 127 + m : m] = value;
    if (is_signed && m > 0 && m < 128) table.values[127 - m] = -value;
    borders[m] = m + 1 < count ? static_cast<float>((magnitudes[m] + magnitudes[m + 1]) / 2)
                               : std::numeric_limits<float>::infinity();
  }
  std::size_t m = 0;
  for (std::size_t i = 0; i < table.places.size(); ++i) {
    constexpr std::uint32_t width = DynamicTable::width;
    const std::uint32_t low = static_cast<std::uint32_t>(i) * width + DynamicTable::first_bits;
    while (bit_cast<float>(low) >= borders[m]) ++m;
    const std::uint32_t to_border = bit_cast<std::uint32_t>(borders[m]) - low;
    table.places[i] = static_cast<std::uint32_t>(m) * width + (to_border < width ? width - to_border : 0) - low;
  }
  return table;
}

}  // namespace thimble::quant
