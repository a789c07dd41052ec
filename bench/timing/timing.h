#pragma once
// Time on the processor's clock, which does not run while others have the cores.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/dist/communicator.h>
#include <thimble/nn/step/profile.h>

namespace thimble::bench {

/// One thread for kernels as long as this lives: what threads spend on waiting for each other is then not counted.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Processor milliseconds of one step of each run, on one thread: the runs stand side by side, each in an arena of its
/// own, and make their steps in turn, so that what else the machine does meets all of them. The least of `rounds` after
/// two that do not count; a step that its loss scaler skipped does not count either. Throws ValueError when none is
/// left, and for no rounds; what the runs throw.
std::vector<double> step_processor_ms(memory::Device device, const std::vector<nn::MakeRun>& makes, int rounds);

// ---- The clock of benchmarks of single kernels, and memory for their ceilings.

/// Memory aligned as that of tensors.
struct alignas(64) Line {
  float at[16];
};
using Lines = std::vector<Line>;

/// At least so many bytes.
Lines lines(std::size_t bytes);
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

// ---- What ranks sent to each other, and when.

/// One rank's transfers. Seconds count from a moment that all ranks share.
using RankTransfers = std::vector<dist::TransferTimes>;

/// This rank's clock when all ranks leave a barrier: clocks of several machines then agree to within a message's time.
double shared_moment(dist::Communicator& ranks);

/// `own` of each rank, on all ranks. `moment` is what shared_moment returned.
std::vector<RankTransfers> gather_transfers(dist::Communicator& ranks, RankTransfers own, double moment);

/// Seconds that a rank had transfers under way, and seconds of these that it waited.
struct Overlap {
  double on_its_way, waited;
};
Overlap overlap_of(std::span<const dist::TransferTimes> transfers);

/// Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing: a process per rank, in it a row of
/// what the rank did, computing or waiting, and rows of what was on its way meanwhile, with the bytes sent.
std::string write_transfers(std::span<const RankTransfers> ranks);

}  // namespace thimble::bench
