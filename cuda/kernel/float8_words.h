#pragma once
// Codes of eight numbers at a time, FP8 by the instructions of GPUs that have them (compute capability 8.9).

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::cuda_kernels {

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
