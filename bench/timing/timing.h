#pragma once
// Processor time, which excludes time that other programs take, and the times of transfers between ranks.

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

/// Runs kernels on one thread while it lives, so that processor time includes no waiting between threads.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Least processor milliseconds of a step of each run, on one thread, over `rounds` rounds after two warm-up rounds.
/// Each run has a separate arena, and the runs alternate steps, so that other load on the machine affects all of them.
/// Steps that a loss scaler skipped do not count. Throws ValueError if a run skipped all its steps or rounds < 1;
/// exceptions of the runs pass through.
std::vector<double> step_processor_ms(memory::Device device, const std::vector<nn::MakeRun>& makes, int rounds);

// ---- Clock and memory for benchmarks of single kernels.

/// Memory with the alignment of tensors.
struct alignas(64) Line {
  float at[16];
};
using Lines = std::vector<Line>;

/// At least `bytes` bytes.
Lines lines(std::size_t bytes);
inline float* floats(Lines& lines) { return lines.data()->at; }

/// Milliseconds since an arbitrary moment: the calling thread's processor time if threads == 1, which excludes other
/// programs, else wall time.
double clock_ms(int threads);

/// Best time of `body` by clock_ms(threads), over at least three runs and at least `seconds`. The best counts because
/// other work on the machine only adds time.
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

// ---- Transfers between ranks.

/// One rank's transfers, in seconds since a moment that all ranks share.
using RankTransfers = std::vector<dist::TransferTimes>;

/// This rank's clock after a barrier of all ranks; aligns the clocks of several machines to within a message's time.
double shared_moment(dist::Communicator& ranks);

/// Gathers every rank's transfers on all ranks, with times relative to `moment`, the result of shared_moment.
std::vector<RankTransfers> gather_transfers(dist::Communicator& ranks, RankTransfers own, double moment);

/// Seconds in which a rank had transfers in flight, and seconds that it waited for them.
struct Overlap {
  double on_its_way, waited;
};
Overlap overlap_of(std::span<const dist::TransferTimes> transfers);

/// Chrome's trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing. Each rank is a process with a row
/// of computing and waiting, and rows of transfers in flight with the bytes sent.
std::string write_transfers(std::span<const RankTransfers> ranks);

}  // namespace thimble::bench
