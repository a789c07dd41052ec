#pragma once
// What ranks sent to each other, and when.

#include <span>
#include <string>
#include <vector>

#include <thimble/dist/communicator.h>

namespace thimble::bench {

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
