#include <thimble/core/kernels/cpu/elementwise/mask_bits.h>

#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/cpu/base/isa.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {
namespace mask_bits_detail {

template <class T>
void pack_plain(const T* values, std::int64_t n, T zero, std::uint8_t* mask) {
  for (std::int64_t i = 0; i < n; i += 8) {
    unsigned bits = 0;
    for (std::int64_t bit = 0; bit < std::min<std::int64_t>(8, n - i); ++bit) {
      bits |= static_cast<unsigned>(values[i + bit] > zero) << bit;
    }
    mask[i / 8] = static_cast<std::uint8_t>(bits);
  }
}

template <class T>
void keep_plain(const std::uint8_t* mask, std::int64_t first, const T* from, T* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t bit = first + i;
    to[i] = ((mask[bit / 8] >> (bit % 8)) & 1) != 0 ? from[i] : T(0);
  }
}

#if defined(__x86_64__)
THIMBLE_TARGET_AVX2 void pack_avx2(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
  const __m256 limit = _mm256_set1_ps(zero);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 is_greater = _mm256_cmp_ps(_mm256_loadu_ps(values + i), limit, _CMP_GT_OQ);
    mask[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(is_greater));
  }
  pack_plain(values + i, n - i, zero, mask + i / 8);
}

THIMBLE_TARGET_AVX512 void pack_avx512(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
  const __m512 limit = _mm512_set1_ps(zero);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto bits = static_cast<std::uint16_t>(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + i), limit, _CMP_GT_OQ));
    std::memcpy(mask + i / 8, &bits, sizeof bits);
  }
  pack_plain(values + i, n - i, zero, mask + i / 8);
}

// The next two require `first` to be a multiple of 8.
THIMBLE_TARGET_AVX2 void keep_avx2(const std::uint8_t* mask, std::int64_t first, const float* from, float* to,
                                   std::int64_t n) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i byte = _mm256_set1_epi32(mask[(first + i) / 8]);
    const __m256i is_set = _mm256_cmpeq_epi32(_mm256_and_si256(byte, bit), bit);
    _mm256_storeu_ps(to + i, _mm256_and_ps(_mm256_castsi256_ps(is_set), _mm256_loadu_ps(from + i)));
  }
  keep_plain(mask, first + i, from + i, to + i, n - i);
}

THIMBLE_TARGET_AVX512 void keep_avx512(const std::uint8_t* mask, std::int64_t first, const float* from, float* to,
                                       std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    std::uint16_t bits;
    std::memcpy(&bits, mask + (first + i) / 8, sizeof bits);
    // Not a masked load: processors do not prefetch those.
    const __m512 is_set = _mm512_castsi512_ps(_mm512_movm_epi32(bits));
    _mm512_storeu_ps(to + i, _mm512_and_ps(is_set, _mm512_loadu_ps(from + i)));
  }
  keep_plain(mask, first + i, from + i, to + i, n - i);
}
#endif

}  // namespace mask_bits_detail

void pack_greater(const float* values, std::int64_t n, float zero, std::uint8_t* mask) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return mask_bits_detail::pack_avx512(values, n, zero, mask);
  if (isa() == Isa::avx2) return mask_bits_detail::pack_avx2(values, n, zero, mask);
#endif
  mask_bits_detail::pack_plain(values, n, zero, mask);
}

void pack_greater(const double* values, std::int64_t n, double zero, std::uint8_t* mask) {
  mask_bits_detail::pack_plain(values, n, zero, mask);
}

void keep_masked(const std::uint8_t* mask, std::int64_t first, const float* from, float* to, std::int64_t n) {
#if defined(__x86_64__)
  if (first % 8 == 0) {
    if (isa() == Isa::avx512) return mask_bits_detail::keep_avx512(mask, first, from, to, n);
    if (isa() == Isa::avx2) return mask_bits_detail::keep_avx2(mask, first, from, to, n);
  }
#endif
  mask_bits_detail::keep_plain(mask, first, from, to, n);
}

void keep_masked(const std::uint8_t* mask, std::int64_t first, const double* from, double* to, std::int64_t n) {
  mask_bits_detail::keep_plain(mask, first, from, to, n);
}

}  // namespace thimble::kernels
