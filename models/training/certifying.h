#pragma once
// A named model's training run, plain and under its plan, held against each other bit by bit.

#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>

namespace thimble::models {

/// Runs the first `options.steps` steps of a prepared run, then its evaluation, with everything kept and then under the
/// plan, on the same data (nn/certify/certify.h). Throws ValueError where the plan rounds (`allows_lossy`), or there is
/// none.
nn::Certificate certify_training(const PreparedTraining& prepared);

}  // namespace thimble::models
