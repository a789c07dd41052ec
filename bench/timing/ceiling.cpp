#include <thimble/bench/timing/ceiling.h>

#include <algorithm>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <thimble/bench/timing/kernel_timing.h>
#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>

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

THIMBLE_TARGET_AVX2 void triad_avx2(float* a, const float* b, const float* c, float factor, std::int64_t n,
                                    bool streams) {
  const __m256 f = _mm256_set1_ps(factor);
  for (std::int64_t i = 0; i < n; i += 8) {
    const __m256 sum = _mm256_add_ps(_mm256_load_ps(b + i), _mm256_mul_ps(f, _mm256_load_ps(c + i)));
    streams ? _mm256_stream_ps(a + i, sum) : _mm256_store_ps(a + i, sum);
  }
  _mm_sfence();
}

THIMBLE_TARGET_AVX512 void triad_avx512(float* a, const float* b, const float* c, float factor, std::int64_t n,
                                        bool streams) {
  const __m512 f = _mm512_set1_ps(factor);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(b + i), _mm512_mul_ps(f, _mm512_load_ps(c + i)));
    streams ? _mm512_stream_ps(a + i, sum) : _mm512_store_ps(a + i, sum);
  }
  _mm_sfence();
}
#endif

void check_isa(const char* name, kernels::Isa isa) {
  if (kernels::is_supported(isa)) return;
  throw ValueError(std::string(name) + ": this machine does not support " + std::string(to_string(isa)) +
                   ", its best is " + std::string(to_string(kernels::best_isa())));
}

void check_threads(const char* name, int threads) {
  if (threads >= 1 && threads <= thread_count()) return;
  throw ValueError(std::string(name) + ": " + std::to_string(threads) + " threads; 1 to " +
                   std::to_string(thread_count()) + " are allowed");
}

}  // namespace ceiling_detail

double fma_chains(kernels::Isa isa, std::int64_t rounds, float factor, float addend) {
  ceiling_detail::check_isa("fma_chains", isa);
#if defined(__x86_64__)
  if (isa == kernels::Isa::avx512) return ceiling_detail::avx512(rounds, factor, addend);
  if (isa == kernels::Isa::avx2) return ceiling_detail::avx2(rounds, factor, addend);
#endif
  return ceiling_detail::generic(rounds, factor, addend);
}

double ceiling_gflops(kernels::Isa isa, int threads, double seconds) {
  ceiling_detail::check_threads("ceiling_gflops", threads);
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

void triad(kernels::Isa isa, float* a, const float* b, const float* c, float factor, std::int64_t n, bool streams) {
  ceiling_detail::check_isa("triad", isa);
#if defined(__x86_64__)
  if (isa == kernels::Isa::avx512) return ceiling_detail::triad_avx512(a, b, c, factor, n, streams);
  if (isa == kernels::Isa::avx2) return ceiling_detail::triad_avx2(a, b, c, factor, n, streams);
#endif
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] + factor * c[i];
}

double memory_gbs(kernels::Isa isa, int threads, std::int64_t n, double seconds) {
  ceiling_detail::check_isa("memory_gbs", isa);
  ceiling_detail::check_threads("memory_gbs", threads);
  if (n <= 0) throw ValueError("memory_gbs: " + std::to_string(n) + " elements; at least 1 is needed");
  const std::int64_t part = (n + 16 * threads - 1) / (16 * threads) * 16;
  const auto bytes = static_cast<std::size_t>(part * threads) * sizeof(float);
  Lines a = lines(bytes), b = lines(bytes), c = lines(bytes);
  double least_ms = INFINITY;
  for (const bool streams : {false, true}) {
    least_ms = std::min(least_ms, best_ms(seconds, [&] {
                          parallel_threads(threads, [&](int thread) {
                            const std::int64_t at = thread * part;
                            triad(isa, floats(a) + at, floats(b) + at, floats(c) + at, 3, part, streams);
                          });
                        }));
  }
  return 1e-6 * 3 * static_cast<double>(bytes) / least_ms;
}

}  // namespace thimble::bench
