#pragma once
// Loops between f32 and FP8 codes in AVX-512, several times as fast as the compiler's version of the codec
// (core/numbers/minifloat.h), which is their oracle: the same bits (except the sign of a NaN that a product makes),
// whatever the processor does with subnormals. Call only where isa() is Isa::avx512; `code` is f8e4m3 or f8e5m2.

#include <cstdint>

#include <thimble/core/tensor/dtype.h>

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
