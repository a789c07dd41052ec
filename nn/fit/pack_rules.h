#pragma once
// The plan that packs every packable tensor and runs nothing again: the largest error of lossy saved tensors, and their
// savings without a solver.

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Spills of all results that a backward reads and that `spilling` can pack, each as soon as only the tape holds it.
/// Does not pack small tensors, nor tensors that the program or a leaf holds to the end. Throws what check_rules
/// throws.
TapePlan pack_all(const TapeGraph& graph, const SpillPolicy& spilling);

/// The same for the step of `make`'s run, recorded on the dry twin of `device`, with its peak in an arena without
/// placement. Throws what the run throws.
Plan packed_plan(const MakeRun& make, memory::Device device, const SpillPolicy& spilling);

}  // namespace thimble::nn
