#pragma once
// What `thimble certify` does, as a call: a training run of `thimble train`, plain and under its plan, bit by bit.

#include <thimble/bench/runs/training.h>
#include <thimble/nn/certify/certify.h>

namespace thimble::bench {

/// Runs the first `options.steps` steps of a prepared run, then its evaluation, with everything kept and then under the
/// plan, on the same data (nn/certify/certify.h). Throws ValueError where the plan rounds (--allow-lossy), or there is
/// none.
nn::Certificate certify_training(const PreparedTraining& prepared);

}  // namespace thimble::bench
