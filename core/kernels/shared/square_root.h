#pragma once
// Square roots in a loop, correctly rounded in every instruction set. Hand-written: std::sqrt may set errno, which
// prevents vectorization.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/isa.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {
namespace square_root_detail {

template <class T>
inline void plain(const T* x, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::sqrt(x[i]);
}

#if defined(__x86_64__)
inline void sse(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) _mm_storeu_ps(y + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
  plain(x + i, y + i, n - i);
}

THIMBLE_TARGET_AVX2 inline void avx2(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
  plain(x + i, y + i, n - i);
}

THIMBLE_TARGET_AVX512 inline void avx512(const float* x, float* y, std::int64_t n) {
  constexpr __mmask16 all = 0xFFFF;  // gcc 12 warns about the form without a mask
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, _mm512_maskz_sqrt_ps(all, _mm512_loadu_ps(x + i)));
  plain(x + i, y + i, n - i);
}
#endif

}  // namespace square_root_detail

/// y[i] = sqrt(x[i]), in vectors of the instruction set; y may be x.
template <Isa target, class T>
THIMBLE_ALWAYS_INLINE void square_roots(const T* x, T* y, std::int64_t n) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if constexpr (target == Isa::avx512) return square_root_detail::avx512(x, y, n);
    if constexpr (target == Isa::avx2) return square_root_detail::avx2(x, y, n);
    return square_root_detail::sse(x, y, n);
  }
#endif
  square_root_detail::plain(x, y, n);
}

}  // namespace thimble::kernels
