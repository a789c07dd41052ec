#include <thimble/bench/timing/ceiling.h>

#include <algorithm>
#include <map>
#include <string_view>

#include <thimble/bench/timing/timing.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::bench {
namespace {

// Two FMA units with a latency of four cycles need eight chains; separate multiplications and additions on three ports
// need eleven. Twelve chains and two constants fit the sixteen registers of SSE and AVX2.
constexpr int chains = 12;
constexpr std::int64_t run_rounds = 1 << 20;  // 2 ms at 3 GHz and six cycles a round

template <kernels::Isa target>
struct Chains {
  static THIMBLE_ALWAYS_INLINE void run(std::int64_t rounds, float factor, float addend, double* sum) {
    using V = kernels::Simd<float, target>;
    typename V::Vector f, a, x[chains];
    V::broadcast(f, factor);
    V::broadcast(a, addend);
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) V::broadcast(x[i], static_cast<float>(i));
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
      for (int i = 0; i < chains; ++i) V::multiply_add(x[i], x[i], f, a);
    }
    float values[chains * V::lanes];
    for (int i = 0; i < chains; ++i) V::at(values + i * V::lanes) = x[i];
    for (const float value : values) *sum += static_cast<double>(value);
  }
};

#if defined(__x86_64__)
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

/// Eight independent sums, so that additions do not hold up the loads.
template <kernels::Isa target>
struct ReadSum {
  static THIMBLE_ALWAYS_INLINE void run(const float* x, std::int64_t n, float* result) {
    using V = kernels::Simd<float, target>;
    constexpr int chains = 8;
    typename V::Vector sum[chains];
    for (auto& chain : sum) V::broadcast(chain, 0);
    for (std::int64_t i = 0; i < n; i += chains * V::lanes) {
      for (int k = 0; k < chains; ++k) sum[k] += V::at(x + i + k * V::lanes);
    }
    *result = 0;
    for (const auto& chain : sum) {
      for (int lane = 0; lane < V::lanes; ++lane) *result += chain[lane];
    }
  }
};

void check_isa(const char* name, kernels::Isa isa) {
  if (kernels::is_supported(isa)) return;
  throw ValueError(std::string(name) + ": this machine does not support " + std::string(to_string(isa)) +
                   ", its best is " + std::string(to_string(kernels::best_isa())));
}

void check_threads(const char* name, int threads) {
  if (threads >= 1 && threads <= thread_count()) return;
  throw ValueError(std::string(name) + ": " + std::to_string(threads) + " threads; expected 1 to " +
                   std::to_string(thread_count()));
}

}  // namespace

double fma_chains(kernels::Isa isa, std::int64_t rounds, float factor, float addend) {
  check_isa("fma_chains", isa);
  double sum = 0;
  kernels::with_target(isa, [&]<kernels::Isa target>() {
    using Body = Chains<target>;
    kernels::compiled_for<target, Body, std::int64_t, float, float, double*>(rounds, factor, addend, &sum);
  });
  return sum;
}

double ceiling_gflops(kernels::Isa isa, int threads, double seconds) {
  check_threads("ceiling_gflops", threads);
  const double start = fma_chains(isa, 0, 1, 1);
  std::vector<double> multiply_adds(static_cast<std::size_t>(threads));  // counted by the loops
  const double ms = best_ms(seconds, threads, [&] {
    parallel_threads(threads, [&](int thread) {
      multiply_adds[static_cast<std::size_t>(thread)] = fma_chains(isa, run_rounds, 1, 1) - start;
    });
  });
  double all = 0;
  for (const double count : multiply_adds) all += count;
  return 2e-6 * all / ms;
}

void triad(kernels::Isa isa, float* a, const float* b, const float* c, float factor, std::int64_t n, bool streams) {
  check_isa("triad", isa);
#if defined(__x86_64__)
  if (isa == kernels::Isa::avx512) return triad_avx512(a, b, c, factor, n, streams);
  if (isa == kernels::Isa::avx2) return triad_avx2(a, b, c, factor, n, streams);
#endif
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] + factor * c[i];
}

double memory_gbs(kernels::Isa isa, int threads, std::int64_t n, double seconds) {
  check_isa("memory_gbs", isa);
  check_threads("memory_gbs", threads);
  if (n <= 0) throw ValueError("memory_gbs: " + std::to_string(n) + " elements; at least 1 is needed");
  const std::int64_t part = (n + 16 * threads - 1) / (16 * threads) * 16;
  const auto bytes = static_cast<std::size_t>(part * threads) * sizeof(float);
  Lines a = lines(bytes), b = lines(bytes), c = lines(bytes);
  double least_ms = INFINITY;
  for (const bool streams : {false, true}) {
    least_ms = std::min(least_ms, best_ms(seconds, threads, [&] {
                          parallel_threads(threads, [&](int thread) {
                            const std::int64_t at = thread * part;
                            triad(isa, floats(a) + at, floats(b) + at, floats(c) + at, 3, part, streams);
                          });
                        }));
  }
  return 1e-6 * 3 * static_cast<double>(bytes) / least_ms;
}

float read_sum(kernels::Isa isa, const float* x, std::int64_t n) {
  check_isa("read_sum", isa);
  if (n % 128 != 0) throw ValueError("read_sum: " + std::to_string(n) + " elements; expected multiples of 128");
  float sum = 0;
  kernels::with_target(isa, [&]<kernels::Isa target>() {
    kernels::compiled_for<target, ReadSum<target>, const float*, std::int64_t, float*>(x, n, &sum);
  });
  return sum;
}

namespace {

double bytes_of(const TapeGraph& graph, std::uint32_t value) {
  if (value == TapeGraph::none) return 0;
  const TapeGraph::Value& v = graph.values[value];
  return static_cast<double>(v.shape.elements()) * static_cast<double>(size_of(v.dtype));
}

double forward_bytes(const TapeGraph& graph, const TapeGraph::Node& node) {
  if (node.type->cost == ops::Cost::view) return 0;
  double bytes = bytes_of(graph, node.output);
  for (const std::uint32_t input : node.inputs) bytes += bytes_of(graph, input);
  return bytes;
}

double backward_bytes(const TapeGraph& graph, const TapeGraph::Node& node) {
  if (node.type->cost == ops::Cost::view || !node.needs.any()) return 0;
  double bytes = bytes_of(graph, node.output);
  for (const std::uint32_t saved : node.saved) bytes += bytes_of(graph, saved);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.needs[static_cast<int>(i)]) bytes += bytes_of(graph, node.inputs[i]);
  }
  return bytes;
}

}  // namespace

double multiply_adds(const TapeGraph::Node& node) {
  const bool is_attention = std::string_view(node.type->name).ends_with("attention");
  const double backward =
      is_attention ? (node.needs.any() ? 2.5 : 0) : (node.needs[0] ? 1.0 : 0.0) + (node.needs[1] ? 1.0 : 0.0);
  return node.multiply_adds * (1 + backward);
}

double multiply_adds(const TapeGraph& graph) {
  double sum = 0;
  for (const TapeGraph::Node& node : graph.nodes) sum += multiply_adds(node);
  return sum;
}

std::vector<OperatorTime> operator_times(const TapeGraph& graph, const TapeTimes& times) {
  if (times.forward.size() != graph.nodes.size()) {
    throw ValueError("operator_times: times of " + std::to_string(times.forward.size()) + " nodes, the recording has " +
                     std::to_string(graph.nodes.size()));
  }
  std::map<std::string, OperatorTime> by_name;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    OperatorTime& time = by_name[node.type->name];
    ++time.calls;
    time.forward_s += times.forward[n];
    time.recompute_s += times.recompute[n];
    time.backward_s += times.backward[n];
    time.forward_bytes += forward_bytes(graph, node);
    time.backward_bytes += backward_bytes(graph, node);
    time.multiply_adds += multiply_adds(node);
  }
  std::vector<OperatorTime> list;
  for (auto& [name, time] : by_name) {
    time.name = name;
    list.push_back(std::move(time));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const OperatorTime& a, const OperatorTime& b) { return a.seconds() > b.seconds(); });
  return list;
}

}  // namespace thimble::bench
