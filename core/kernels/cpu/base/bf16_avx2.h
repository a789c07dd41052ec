#pragma once
// Rows of float to bf16 by AVX2's instructions: the bits of bf16_code().

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <thimble/core/kernels/cpu/base/isa.h>

#if defined(__x86_64__)
#include <immintrin.h>

namespace thimble::kernels {

/// Codes of eight values, each in the lower half of its lane. Rounding carries into the upper half, as in bf16_code().
THIMBLE_TARGET_AVX2 inline __m256i bf16_codes_8(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
  const __m256i nan = _mm256_or_si256(_mm256_set1_epi32(0x7FC00000), sign);
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
}

/// to[i] = bf16(from[i]) for 16 elements.
THIMBLE_TARGET_AVX2 inline void store_bf16_16(const float* from, void* to) {
  const __m256i low = bf16_codes_8(_mm256_loadu_ps(from)), high = bf16_codes_8(_mm256_loadu_ps(from + 8));
  // packus works in halves of 128 bits: quarters 0 2 1 3.
  const __m256i codes = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
  _mm256_storeu_si256(static_cast<__m256i*>(to), codes);
}

/// The same for `count` elements, at most 8; eight are read.
THIMBLE_TARGET_AVX2 inline void store_bf16_8(const float* from, void* to, int count) {
  const __m256i lanes = bf16_codes_8(_mm256_loadu_ps(from));
  __m128i codes = _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  if (count >= 8) return _mm_storeu_si128(static_cast<__m128i*>(to), codes);
  auto* there = static_cast<std::byte*>(to);
  const auto put = [&](std::size_t bytes) {
    std::memcpy(there, &codes, bytes);
    there += bytes;
  };
  if (count & 4) {
    put(8);
    codes = _mm_srli_si128(codes, 8);
  }
  if (count & 2) {
    put(4);
    codes = _mm_srli_si128(codes, 4);
  }
  if (count & 1) put(2);
}

}  // namespace thimble::kernels

#endif
