#pragma once
// Square roots in a loop. std::sqrt may set errno, which keeps a loop over it from being vectorized.

#include <cmath>
#include <cstdint>

#include <thimble/core/kernels/isa.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {

/// y[i] = sqrt(x[i]), correctly rounded in every variant; y may be x.
THIMBLE_ALWAYS_INLINE void square_roots(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__x86_64__)
  for (; i + 4 <= n; i += 4) _mm_storeu_ps(y + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
#endif
  for (; i < n; ++i) y[i] = std::sqrt(x[i]);
}

}  // namespace thimble::kernels
