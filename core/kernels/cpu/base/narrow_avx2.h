#pragma once
// Conversions between rows of float and of the two 16-bit formats in AVX2 and F16C instructions, with the codec's bits;
// transposes. Functions of f16 need this_processor().has_f16c.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/numbers/minifloat.h>

#if defined(__x86_64__)
#include <immintrin.h>

/// Compilers emit F16C instructions only where intrinsics name them: with this attribute, functions that name none run
/// wherever AVX2 does.
#define THIMBLE_TARGET_F16C __attribute__((target("avx2,fma,f16c")))

namespace thimble::kernels {

/// Eight codes as floats. vcvtph2ps makes NaN quiet and keeps its payload, as the codec does.
THIMBLE_TARGET_F16C inline __m256 floats_8(__m128i codes, f16) { return _mm256_cvtph_ps(codes); }
THIMBLE_TARGET_F16C inline __m256 floats_8(__m128i codes, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

/// Eight neighbouring elements as floats.
THIMBLE_TARGET_F16C inline __m256 load_8(const float* from) { return _mm256_loadu_ps(from); }
THIMBLE_TARGET_F16C inline __m256 load_8(const f16* from) {
  return floats_8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), f16{});
}
THIMBLE_TARGET_F16C inline __m256 load_8(const bf16* from) {
  return floats_8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), bf16{});
}

/// The transpose of 8 x 8 elements: rows i and i + 4 are put side by side, then pairs and quadruples are exchanged.
template <class From>
THIMBLE_TARGET_F16C THIMBLE_ALWAYS_INLINE void transpose_8x8(const From* in, std::int64_t in_stride, float* out,
                                                             std::int64_t out_stride) {
  __m256 row[8], pair[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const From *const a = in + i * in_stride, *const b = a + 4 * in_stride;
    if constexpr (std::is_same_v<From, float>) {  // loads of halves, which need no shuffle
      row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
      row[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + 4)), _mm_loadu_ps(b + 4), 1);
    } else {
      const __m256 low = load_8(a), high = load_8(b);
      row[i] = _mm256_permute2f128_ps(low, high, 0x20);
      row[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int p = i / 2 * 4 + i % 2, k = i / 2 * 4 + i % 2 * 2;
    _mm256_storeu_ps(out + k * out_stride, _mm256_shuffle_ps(pair[p], pair[p + 2], 0x44));
    _mm256_storeu_ps(out + (k + 1) * out_stride, _mm256_shuffle_ps(pair[p], pair[p + 2], 0xEE));
  }
}

/// Codes of eight values, none of them NaN.
THIMBLE_TARGET_F16C inline __m128i codes_8(__m256 values, f16) {
  return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
}
THIMBLE_TARGET_F16C inline __m128i codes_8(__m256 values, bf16) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i upper = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

/// to[i] = To(from[i]) by the codec, for rows with a NaN: gives the codec's canonical NaN.
template <class To>
__attribute__((noinline)) void store_by_codec(const float* from, To* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = To(from[i]);
}

/// The same for `count` elements, at most 8; reads eight.
template <class To>
THIMBLE_TARGET_F16C inline void store_8(const float* from, To* to, std::int64_t count) {
  const __m256 values = _mm256_loadu_ps(from);
  if (_mm256_movemask_ps(_mm256_cmp_ps(values, values, _CMP_UNORD_Q)) != 0) return store_by_codec(from, to, count);
  __m128i codes = codes_8(values, To{});
  if (count >= 8) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), codes);
  if (count & 4) {
    std::memcpy(to, &codes, 8);
    to += 4;
    codes = _mm_srli_si128(codes, 8);
  }
  if (count & 2) {
    std::memcpy(to, &codes, 4);
    to += 2;
    codes = _mm_srli_si128(codes, 4);
  }
  if (count & 1) std::memcpy(to, &codes, 2);
}

/// The same for 16 elements.
template <class To>
THIMBLE_TARGET_F16C inline void store_16(const float* from, To* to) {
  const __m256 low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + 8);
  if (_mm256_movemask_ps(_mm256_cmp_ps(low, high, _CMP_UNORD_Q)) != 0) return store_by_codec(from, to, 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), codes_8(low, To{}));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), codes_8(high, To{}));
}

}  // namespace thimble::kernels

#endif
