#pragma once
// The plan that packs all it can and runs nothing again: what lossy saved tensors cost at most, in digits, and what
// they save without a solver.

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Spills of all results that a backward reads and that can be packed as `spilling` says, each as soon as nothing but
/// the tape holds it. What the program or a leaf holds to the end, and what is small, is kept as it is. Throws what
/// check_rules throws.
TapePlan pack_all(const TapeGraph& graph, const SpillPolicy& spilling);

/// The same for the step of `make`'s run, recorded on the dry twin of `device`, with its peak in an arena without
/// placement. Throws what the run throws.
Plan packed_plan(const MakeRun& make, memory::Device device, const SpillPolicy& spilling);

}  // namespace thimble::nn
