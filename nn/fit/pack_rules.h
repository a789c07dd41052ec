#pragma once
// A plan that packs every packable tensor and recomputes nothing: the largest error of lossy saved tensors, and their
// savings without a solver.

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Spills all results that a backward reads and that `spilling` can pack, each as soon as only the tape holds it. Skips
/// small tensors, and tensors that the program or a leaf holds to the end. Throws any error of check_rules.
TapePlan pack_all(const TapeGraph& graph, const SpillPolicy& spilling);

/// A plan with pack_all's tape for the step of `make`'s run, recorded on the dry twin of `device`, with its peak in an
/// arena without placement. Throws any error of the run.
Plan packed_plan(const MakeRun& make, memory::Device device, const SpillPolicy& spilling);

}  // namespace thimble::nn
