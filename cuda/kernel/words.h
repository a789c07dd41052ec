#pragma once
// Neighbouring elements that a thread reads and writes together, in words of up to 16 bytes, and rows of words.
// Instructions convert two values at a time, with the bits of core/numbers.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/kernel.h>

// ---- For kernels written for warps: lanes, addresses in shared memory, and asynchronous loads that bypass registers.
//
// Glossary
// - chunk: 16 bytes, eight elements of 16 bits.
//
// Policy
// - On the host (tests/emulated/warp.h) an asynchronous load happens when it is waited for, and until then its
//   destination holds NaN and must not be touched: this finds a kernel that does not wait.

namespace thimble::cuda_kernels {

/// An address in shared memory.
using SharedAddress = std::uint32_t;

struct Warp {
  THIMBLE_DEVICE explicit Warp(const TeamPart& team) : rank(team.rank() / 32), lane(team.rank() % 32) {}
  int rank;  ///< of the warp in its team
  int lane;  ///< of this thread in its warp
};

}  // namespace thimble::cuda_kernels

#if defined(__CUDACC__)
#define THIMBLE_UNROLL _Pragma("unroll")
#define THIMBLE_ROLLED _Pragma("unroll 1")

namespace thimble::cuda_kernels {

template <class T>
__device__ inline SharedAddress shared_address(Shared<T> place) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(place));
}
__device__ inline float load_shared(SharedAddress from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
/// Stores one chunk.
__device__ inline void store_shared(SharedAddress to, const std::uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

/// Asynchronous loads into shared memory.
struct AsyncLoads {
  /// Loads zeros unless `is_there`; `from` must be a valid address even then.
  template <int bytes>
  __device__ void load(SharedAddress to, const void* from, bool is_there) {
    const int count = is_there ? bytes : 0;
    if constexpr (bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
    } else {
      static_assert(bytes == 4);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(count) : "memory");
    }
  }
  /// Waits for this thread's loads; a barrier makes the others' visible.
  __device__ void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};

/// The value of lane ^ mask.
template <class V>
__device__ inline V exchange(V value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

}  // namespace thimble::cuda_kernels

#else
#define THIMBLE_UNROLL
#define THIMBLE_ROLLED
#include <emulated/warp.h>
#endif

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

/// packed() of two values, with convert_value's NaN, which keeps the sign.
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

/// Whether convert_value<S>(value) > 0; half of the least positive number rounds to 0.
template <class S>
THIMBLE_DEVICE inline bool is_positive_as(float value) {
  return value > (std::is_same_v<S, f16> ? 0x1p-25f : std::is_same_v<S, bf16> ? 0x1p-134f : 0.0f);
}

/// Whether convert_value<S>(value) < 6, for S of 16 bits and more; half way below 6 rounds to 6.
template <class S>
THIMBLE_DEVICE inline bool is_below_six_as(float value) {
  return value < (std::is_same_v<S, f16> ? 6 - 0x1p-9f : std::is_same_v<S, bf16> ? 6 - 0x1p-6f : 6.0f);
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

// ---- Codes of eight numbers at a time, FP8 by the instructions of GPUs that have them (compute capability 8.9).

template <class Code>
inline constexpr bool is_e4m3 = std::is_same_v<Code, quant::Float8Code<f8e4m3>>;
template <class Code>
inline constexpr bool is_float8 = is_e4m3<Code> || std::is_same_v<Code, quant::Float8Code<f8e5m2>>;

THIMBLE_DEVICE inline bool is_infinite(float value) {
  return (bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu) == quant::infinity_bits;
}

/// The FP8 codes of two numbers, `low` in the lower half; infinite ones have the largest finite code.
template <class Code>
THIMBLE_DEVICE inline std::uint16_t two_codes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  if constexpr (is_e4m3<Code>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  const auto code = [](float x) {
    return kernels::fp8_code<Code>(is_infinite(x) ? std::copysign(Code::largest, x) : x, 1);
  };
  return static_cast<std::uint16_t>(code(low) | code(high) << 8);
#endif
}

/// The values of two FP8 codes as two f16; NaN is one of f16's.
template <class Code>
THIMBLE_DEVICE inline std::uint32_t two_values(std::uint16_t pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t values;
  if constexpr (is_e4m3<Code>) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(pair));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(values) : "h"(pair));
  }
  return values;
#else
  const auto value = [](unsigned code) { return Code{}.decode(static_cast<std::uint8_t>(code)); };
  return packed<f16>(value(pair & 0xFFu), value(pair >> 8));
#endif
}

/// code.encode(x) of eight finite numbers.
template <class Code>
THIMBLE_DEVICE inline Words<typename Code::Bits, 8> encode_eight(const Code& code, const float (&x)[8]) {
  if constexpr (is_float8<Code>) {
    Words<std::uint16_t, 4> pairs;
    THIMBLE_UNROLL
    for (int v = 0; v < 8; v += 2) pairs.values[v / 2] = two_codes<Code>(x[v], x[v + 1]);
    return bit_cast<Words<std::uint8_t, 8>>(pairs);
  } else {
    Words<typename Code::Bits, 8> codes;
    THIMBLE_UNROLL
    for (int v = 0; v < 8; ++v) codes.values[v] = code.encode(x[v]);
    return codes;
  }
}

/// code.decode() of eight codes; FP8's NaN may be another one.
template <class Code>
THIMBLE_DEVICE inline void decode_eight(const Code& code, const Words<typename Code::Bits, 8>& codes, float (&x)[8]) {
  if constexpr (is_float8<Code>) {
    const auto pairs = bit_cast<Words<std::uint16_t, 4>>(codes);
    THIMBLE_UNROLL
    for (int v = 0; v < 8; v += 2) widen_pair<f16>(two_values<Code>(pairs.values[v / 2]), x[v], x[v + 1]);
  } else {
    THIMBLE_UNROLL
    for (int v = 0; v < 8; ++v) x[v] = code.decode(codes.values[v]);
  }
}

}  // namespace thimble::cuda_kernels
