#pragma once
// Neighbouring elements that a thread reads and writes together, in words of up to 16 bytes, and rows of them. Values
// are converted by instructions, two at a time, with the bits of core/numbers.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <thimble/core/numbers/convert.h>
#include <thimble/cuda/kernel/warp.h>

namespace thimble::cuda_kernels {

template <class S, int count>
struct alignas(sizeof(S) * count < 16 ? sizeof(S) * count : 16) Words {
  S values[count];
};

/// Elements of S in 16 bytes.
template <class S>
inline constexpr int word_elements = 16 / static_cast<int>(sizeof(S));

/// Elements at .. at + count - 1, which begin at a multiple of the words' alignment.
template <int count, class S>
THIMBLE_DEVICE inline Words<S, count> words_at(const S* from, std::int64_t at) {
  return *reinterpret_cast<const Words<S, count>*>(from + at);
}
template <class S, int count>
THIMBLE_DEVICE inline void put_words(S* to, std::int64_t at, const Words<S, count>& words) {
  *reinterpret_cast<Words<S, count>*>(to + at) = words;
}

/// Two values as T (f16, bf16), rounded to nearest even; `low` in the lower half. NaN becomes any NaN.
template <class T>
THIMBLE_DEVICE inline std::uint32_t packed(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return convert_value<T>(low).bits | static_cast<std::uint32_t>(convert_value<T>(high).bits) << 16;
#endif
}

/// The compute type of elements of S.
template <class S>
using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// An element in the compute type: exact.
template <class S>
THIMBLE_DEVICE inline Wide<S> widened(S value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<S, f16>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
  }
#endif
  return convert_value<Wide<S>>(value);
}

/// Two neighbours of a word in the compute type.
template <class S>
THIMBLE_DEVICE inline void widen_pair(std::uint32_t pair, float& low, float& high) {
  low = widened(S::from_bits(static_cast<std::uint16_t>(pair)));
  high = widened(S::from_bits(static_cast<std::uint16_t>(pair >> 16)));
}

/// packed() of two values, with convert_value's NaN: it keeps their sign.
template <class S>
THIMBLE_DEVICE inline std::uint32_t with_signed_nan(std::uint32_t pair, float low, float high) {
  constexpr std::uint32_t nan = S::Format::nan_code;
  if (low != low) pair = (pair & 0xFFFF0000u) | (bit_cast<std::uint32_t>(low) >> 16 & 0x8000u) | nan;
  if (high != high) pair = (pair & 0xFFFFu) | (bit_cast<std::uint32_t>(high) & 0x80000000u) | nan << 16;
  return pair;
}

/// Values as elements of S: convert_value of each.
template <class S, int count>
THIMBLE_DEVICE inline Words<S, count> narrowed(const Wide<S> (&values)[count]) {
  if constexpr (sizeof(S) == 2 && count % 2 == 0) {
    Words<std::uint32_t, count / 2> pairs;
    bool has_nan = false;
    THIMBLE_UNROLL
    for (int i = 0; i < count / 2; ++i) {
      pairs.values[i] = packed<S>(values[2 * i], values[2 * i + 1]);
      has_nan = has_nan || values[2 * i] != values[2 * i] || values[2 * i + 1] != values[2 * i + 1];
    }
    if (has_nan) {
      THIMBLE_UNROLL
      for (int i = 0; i < count / 2; ++i) {
        pairs.values[i] = with_signed_nan<S>(pairs.values[i], values[2 * i], values[2 * i + 1]);
      }
    }
    return bit_cast<Words<S, count>>(pairs);
  } else {
    Words<S, count> words;
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) words.values[e] = convert_value<S>(values[e]);
    return words;
  }
}

/// Whether convert_value<S>(value) > 0: half of the least positive number rounds to 0.
template <class S>
THIMBLE_DEVICE inline bool is_positive_as(float value) {
  return value > (std::is_same_v<S, f16> ? 0x1p-25f : std::is_same_v<S, bf16> ? 0x1p-134f : 0.0f);
}

inline bool is_aligned(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}
/// Whether all non-null operands begin at multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const void*> operands) {
  std::uintptr_t addresses = 0;
  for (const void* const operand : operands) addresses |= reinterpret_cast<std::uintptr_t>(operand);
  return addresses % 16 == 0;
}

/// Whether kernels read the dtype in words.
inline bool is_word_dtype(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

/// f.template operator()<S>() for these dtypes; else returns false.
template <class F>
bool with_word_dtype(DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>(), true;
  if (dtype == DType::bf16) return f.template operator()<bf16>(), true;
  if (dtype == DType::f16) return f.template operator()<f16>(), true;
  return false;
}

}  // namespace thimble::cuda_kernels
