#pragma once
// Shapes, clock and output line of this folder's matmul programs; peers.sh reads the lines.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

namespace peers {

struct Shape {
  const char* name;
  std::int64_t m, n, k;
};

/// Squares, a transformer's projections (12 heads of 64, 2048 tokens), ResNet-50's convolutions as products, a head's
/// scores and values, and a weight gradient.
inline constexpr Shape shapes[] = {
    {"square-64", 64, 64, 64},         {"square-256", 256, 256, 256},
    {"square-512", 512, 512, 512},     {"square-1024", 1024, 1024, 1024},
    {"square-2048", 2048, 2048, 2048}, {"projection", 2048, 768, 768},
    {"mlp-up", 2048, 3072, 768},       {"mlp-down", 2048, 768, 3072},
    {"head", 2048, 50257, 768},        {"conv-2", 64, 3136, 576},
    {"conv-4", 256, 196, 2304},        {"conv-5", 512, 49, 4608},
    {"qkv", 2048, 1152, 384},          {"scores", 256, 256, 64},
    {"values", 256, 64, 256},          {"weight-gradient", 768, 3072, 2048},
};

/// Seconds of the calling thread's processor time if threads == 1, which excludes other programs, else of wall time.
inline double seconds(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Runs `work` for at least 0.1 s and three times. Prints "kind shape Gop/s" at the 10 % quantile of the times, the
/// third fastest at most, because a virtual machine's clock may jump.
template <class Work>
void report(const char* kind, const Shape& shape, int threads, Work&& work) {
  work();
  std::vector<double> times;
  const double begin = seconds(0);
  while (times.size() < 3 || seconds(0) - begin < 0.1) {
    const double start = seconds(threads);
    work();
    times.push_back(seconds(threads) - start);
  }
  const auto best = times.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(times.size() / 10, 2));
  std::nth_element(times.begin(), best, times.end());
  const double operations = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n * shape.k);
  std::printf("%s %s %.1f\n", kind, shape.name, operations / *best * 1e-9);
  std::fflush(stdout);
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<void, Free>;

/// At least `bytes` zeros, page-aligned.
inline Memory zeros(std::size_t bytes) {
  const std::size_t whole = (bytes + 4095) / 4096 * 4096 + 4096;
  void* const p = std::aligned_alloc(4096, whole);
  if (p == nullptr) std::exit(1);
  std::fill_n(static_cast<char*>(p), whole, '\0');
  return Memory(p);
}

/// `count` floats between -1 and 1.
inline Memory floats(std::int64_t count) {
  Memory memory = zeros(static_cast<std::size_t>(count) * sizeof(float));
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    static_cast<float*>(memory.get())[i] = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
  }
  return memory;
}

inline int threads_of(int argc, char** argv) { return argc > 1 ? std::max(1, std::atoi(argv[1])) : 1; }

}  // namespace peers
