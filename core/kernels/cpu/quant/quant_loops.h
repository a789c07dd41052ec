#pragma once
// Loops over codes (core/numbers/quant_code.h), compiled for the instruction set of the function around them.

#include <algorithm>
#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/numbers/quant_code.h>

namespace thimble::kernels {

/// The most values that a loop takes at once.
inline constexpr std::int64_t quant_tile = 512;

/// codes[i] = code of values[i] * inverse(i).
template <class Code, class Inverse>
THIMBLE_ALWAYS_INLINE void encode_loop(const Code& code, const float* values, Inverse&& inverse,
                                       typename Code::Bits* __restrict codes, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = code.encode(values[i] * inverse(i));
}

/// The same for dynamic codes, in three steps: only the look-ups in the middle are not vectors.
template <bool is_signed, class Inverse>
THIMBLE_ALWAYS_INLINE void encode_loop(const quant::DynamicCode<is_signed>& code, const float* values,
                                       Inverse&& inverse, std::uint8_t* __restrict codes, std::int64_t n) {
  using Code = quant::DynamicCode<is_signed>;
  alignas(64) std::uint32_t bits[quant_tile], bucket[quant_tile], place[quant_tile];
  for (std::int64_t i = 0; i < n; ++i) {
    bits[i] = bit_cast<std::uint32_t>(values[i] * inverse(i));
    bucket[i] = Code::bucket_of(bits[i]);
  }
  for (std::int64_t i = 0; i < n; ++i) place[i] = code.magnitude_of(bits[i], bucket[i]);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = Code::with_sign(bits[i], place[i]);
}

/// values[i] = codes[i] * scale(i).
template <class Code, class Scale>
THIMBLE_ALWAYS_INLINE void decode_loop(const Code& code, const typename Code::Bits* codes, Scale&& scale,
                                       float* __restrict values, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = code.decode(codes[i]) * scale(i);
}

/// The largest magnitude of n values, as bits.
THIMBLE_ALWAYS_INLINE std::uint32_t largest_bits(const float* values, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
    most = most < magnitude ? magnitude : most;
  }
  return most;
}

}  // namespace thimble::kernels

// ---- Loops between f32 and FP8 codes in AVX-512, several times as fast as the compiler's version of the codec
// (core/numbers/minifloat.h), which is their oracle: the same bits (except the sign of a NaN that a product makes),
// whatever the processor does with subnormals. Call only where isa() is Isa::avx512; `code` is f8e4m3 or f8e5m2.

#if defined(__x86_64__)

namespace thimble::kernels {

/// codes[i] = fp8_code(values[i], inverse) of core/kernels/shared/fp8_code.h.
void fp8_encode_avx512(DType code, const float* values, float inverse, std::uint8_t* codes, std::int64_t n) noexcept;

/// codes[i] = the saturating code of values[i] * inverse[i].
void fp8_encode_avx512(DType code, const float* values, const float* inverse, std::uint8_t* codes,
                       std::int64_t n) noexcept;

/// bf16[i] = fp8_value_bits(codes[i]) of core/kernels/shared/fp8_code.h.
void fp8_decode_avx512(DType code, const std::uint8_t* codes, std::uint16_t* bf16, std::int64_t n) noexcept;

/// bf16[i] = fp8_value_bits(codes[i], factor).
void fp8_decode_avx512(DType code, const std::uint8_t* codes, float factor, std::uint16_t* bf16,
                       std::int64_t n) noexcept;

}  // namespace thimble::kernels

#endif
