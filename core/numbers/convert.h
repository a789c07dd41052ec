#pragma once
// Conversion between element types, by the same rules in casts, kernels' loads and stores, and files.
//
//   to \ from      floating                                   integer or bool
//   floating       nearest, ties to even, rounded once;       nearest, ties to even, rounded once
//                  overflow to infinity (E4M3: NaN)
//   integer        toward zero; out of range saturates;       modulo 2^bits
//                  NaN becomes 0
//   bool           x != 0 (NaN is true)                       x != 0
//
// With `Fp8Overflow::saturate`, values too large for an FP8 destination, infinities included, become its largest finite
// value; other destinations ignore it. Narrowing a NaN to 16 or 8 bits keeps its sign but not its payload.

#include <cstdint>
#include <limits>
#include <type_traits>

#include <thimble/core/config.h>
#include <thimble/core/dtype.h>

namespace thimble {

/// True for f16, bf16, f8e4m3, f8e5m2.
template <class T>
inline constexpr bool is_narrow_float = !std::is_arithmetic_v<T>;

// Variables, because device code may read a constant but not call std::numeric_limits.
template <class T>
inline constexpr T integer_min = std::numeric_limits<T>::min();
template <class T>
inline constexpr T integer_max = std::numeric_limits<T>::max();

/// The bits of an f64 NaN as f32, and of an f32 NaN as f64, as processors convert them: quiet, with the sign and the
/// upper bits of the payload. A GPU's f32 units know only one NaN.
THIMBLE_HD constexpr std::uint32_t narrowed_nan(std::uint64_t bits) noexcept {
  return static_cast<std::uint32_t>(bits >> 63 << 31 | 0x7FC00000u | (bits >> 29 & 0x3FFFFFu));
}
THIMBLE_HD constexpr std::uint64_t widened_nan(std::uint32_t bits) noexcept {
  return std::uint64_t{bits >> 31} << 63 | 0x7FF8000000000000u | std::uint64_t{bits & 0x3FFFFFu} << 29;
}

/// One element, by the table above.
template <class To, class From>
THIMBLE_HD constexpr To convert_value(From value, Fp8Overflow overflow = Fp8Overflow::nonfinite) noexcept {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_narrow_float<From>) {
    return convert_value<To>(static_cast<float>(value), overflow);
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (is_narrow_float<To>) {
    if constexpr (std::is_integral_v<From>) {
      return To::from_bits(To::Format::encode(minifloat::to_odd_double(value), overflow));
    } else {
      return To::from_bits(To::Format::encode(value, overflow));
    }
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr To lowest = integer_min<To>;
    constexpr To largest = integer_max<To>;
    constexpr From lower = static_cast<From>(lowest);               // 0 or -2^k: exact
    constexpr From upper = 2 * static_cast<From>(largest / 2 + 1);  // 2^k: exact, the first value out of range
    if (value != value) return To{0};
    if (value <= lower) return lowest;
    if (value >= upper) return largest;
    return static_cast<To>(value);
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<To, float> && std::is_same_v<From, double>) {
      if (value != value) return bit_cast<float>(narrowed_nan(bit_cast<std::uint64_t>(value)));
    } else if constexpr (std::is_same_v<To, double> && std::is_same_v<From, float>) {
      if (value != value) return bit_cast<double>(widened_nan(bit_cast<std::uint32_t>(value)));
    }
#endif
    return static_cast<To>(value);
  }
}

/// Converts `n` contiguous elements. The ranges must not overlap unless the dtypes are equal: that moves bytes, and
/// keeps NaN payloads.
void convert(const void* src, DType from, void* dst, DType to, std::int64_t n,
             Fp8Overflow overflow = Fp8Overflow::nonfinite);

/// Reads the n elements src[0], src[stride], src[2 stride], ... (stride in elements, may be 0 or negative) as f32 or
/// f64. `dst` is contiguous and must not overlap `src`. Exact if that is compute_type(from), else by the table above.
void load_f32(const void* src, DType from, std::int64_t stride, float* dst, std::int64_t n);
void load_f64(const void* src, DType from, std::int64_t stride, double* dst, std::int64_t n);
void load_i64(const void* src, DType from, std::int64_t stride, std::int64_t* dst, std::int64_t n);

/// Writes n contiguous values to dst[0], dst[stride], ... by the table above. `src` must not overlap `dst`.
void store_f32(const float* src, void* dst, DType to, std::int64_t stride, std::int64_t n,
               Fp8Overflow overflow = Fp8Overflow::nonfinite);
void store_f64(const double* src, void* dst, DType to, std::int64_t stride, std::int64_t n,
               Fp8Overflow overflow = Fp8Overflow::nonfinite);
void store_i64(const std::int64_t* src, void* dst, DType to, std::int64_t stride, std::int64_t n,
               Fp8Overflow overflow = Fp8Overflow::nonfinite);

}  // namespace thimble
