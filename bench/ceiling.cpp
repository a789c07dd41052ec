#include <thimble/bench/ceiling.h>

#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <thimble/bench/kernel_timing.h>
#include <thimble/core/error.h>
#include <thimble/core/parallel.h>

namespace thimble::bench {
namespace ceiling_detail {

// Two units with a latency of four cycles want eight chains, a multiplication and an addition apart on three ports
// eleven; twelve and two constants are within the sixteen registers of SSE and AVX2.
constexpr int chains = 12;
constexpr std::int64_t run_rounds = 1 << 20;  // 2 ms at 3 GHz and six cycles a round

typedef float Vector __attribute__((vector_size(16)));

double generic(std::int64_t rounds, float factor, float addend) {
  const Vector f = {factor, factor, factor, factor}, a = {addend, addend, addend, addend};
  Vector x[chains];
#pragma GCC unroll 12
  for (int i = 0; i < chains; ++i) x[i] = Vector{} + static_cast<float>(i);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = x[i] * f + a;
  }
  double sum = 0;
  for (const Vector& v : x) {
    for (int lane = 0; lane < 4; ++lane) sum += static_cast<double>(v[lane]);
  }
  return sum;
}

#if defined(__x86_64__)
double sum_of(const float* values, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += static_cast<double>(values[i]);
  return sum;
}

THIMBLE_TARGET_AVX2 double avx2(std::int64_t rounds, float factor, float addend) {
  const __m256 f = _mm256_set1_ps(factor), a = _mm256_set1_ps(addend);
  __m256 x[chains];
#pragma GCC unroll 12
  for (int i = 0; i < chains; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = _mm256_fmadd_ps(x[i], f, a);
  }
  float values[8 * chains];
  for (int i = 0; i < chains; ++i) _mm256_storeu_ps(values + 8 * i, x[i]);
  return sum_of(values, 8 * chains);
}

THIMBLE_TARGET_AVX512 double avx512(std::int64_t rounds, float factor, float addend) {
  const __m512 f = _mm512_set1_ps(factor), a = _mm512_set1_ps(addend);
  __m512 x[chains];
#pragma GCC unroll 12
  for (int i = 0; i < chains; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) x[i] = _mm512_fmadd_ps(x[i], f, a);
  }
  float values[16 * chains];
  for (int i = 0; i < chains; ++i) _mm512_storeu_ps(values + 16 * i, x[i]);
  return sum_of(values, 16 * chains);
}
#endif

}  // namespace ceiling_detail

double fma_chains(kernels::Isa isa, std::int64_t rounds, float factor, float addend) {
  if (!kernels::is_supported(isa)) {
    throw ValueError("fma_chains: this machine does not support " + std::string(to_string(isa)) + ", its best is " +
                     std::string(to_string(kernels::best_isa())));
  }
#if defined(__x86_64__)
  if (isa == kernels::Isa::avx512) return ceiling_detail::avx512(rounds, factor, addend);
  if (isa == kernels::Isa::avx2) return ceiling_detail::avx2(rounds, factor, addend);
#endif
  return ceiling_detail::generic(rounds, factor, addend);
}

double ceiling_gflops(kernels::Isa isa, int threads, double seconds) {
  if (threads < 1 || threads > thread_count()) {
    throw ValueError("ceiling_gflops: " + std::to_string(threads) + " threads; 1 to " + std::to_string(thread_count()) +
                     " are allowed");
  }
  const double start = fma_chains(isa, 0, 1, 1);
  std::vector<double> multiply_adds(static_cast<std::size_t>(threads));  // as the loops have counted them
  const double ms = best_ms(seconds, [&] {
    parallel_threads(threads, [&](int thread) {
      multiply_adds[static_cast<std::size_t>(thread)] = fma_chains(isa, ceiling_detail::run_rounds, 1, 1) - start;
    });
  });
  double all = 0;
  for (const double count : multiply_adds) all += count;
  return 2e-6 * all / ms;
}

}  // namespace thimble::bench
