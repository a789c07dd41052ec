#pragma once
// The clock of benchmarks of single kernels, and memory for their ceilings.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

/// Milliseconds since some moment: with one thread of its processor time, which leaves out the turns of other programs,
/// else of the wall's clock.
double clock_ms(int threads);

/// The best time of a run on so many threads, by clock_ms: at least three runs, and more until `seconds` are over.
/// Other work on the machine only ever makes one slower.
template <class Body>
double best_ms(double seconds, int threads, Body body) {
  const double start = clock_ms(0);
  double best = INFINITY;
  int runs = 0;
  while (runs++ < 3 || clock_ms(0) - start < 1e3 * seconds) {
    const double before = clock_ms(threads);
    body();
    best = std::min(best, clock_ms(threads) - before);
  }
  return best;
}

}  // namespace thimble::bench
