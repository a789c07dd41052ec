#pragma once
// What the benchmarks of single kernels share: memory, the clock, the options, and the matmul and the ceiling that say
// what the machine gives in the same run.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace thimble::bench {

/// Memory aligned as that of tensors.
struct alignas(64) Line {
  float at[16];
};
using Lines = std::vector<Line>;

/// At least so many bytes.
Lines lines(std::size_t bytes);
/// Normally distributed numbers in f32.
Lines normal_lines(std::int64_t elements);
inline float* floats(Lines& lines) { return lines.data()->at; }

/// The best time of a run: at least three, and more until `seconds` are over. Other work on the machine only ever makes
/// one slower.
template <class Body>
double best_ms(double seconds, Body body) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = INFINITY;
  int runs = 0;
  while (runs++ < 3 || std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const auto before = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - before).count());
  }
  return best;
}

struct KernelTiming {
  int threads = 1;
  double seconds = 0.4;  ///< for each figure
  std::string only;      ///< of the cases, those whose name contains it

  bool takes(const char* name) const { return std::string(name).find(only) != std::string::npos; }
};

/// The main() of a benchmark: reads `[--threads N] [--isa NAME] [--cpu-dot U] [--seconds S] [--only TEXT]`, prints a
/// line with the rate of a square matmul and the ceiling (bench/timing/ceiling.h), and calls `run`. An Error is printed
/// under the program's name, and 2 is returned.
int time_kernels(int argc, char** argv, const char* about, const std::function<void(const KernelTiming&)>& run);

}  // namespace thimble::bench
