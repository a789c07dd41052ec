#pragma once
// Training steps to be timed: a named model on one batch of random values that stays on the device.

#include <thimble/models/training/setup.h>

namespace thimble::models {

/// Makes runs that train `setup` on such a batch. The optimizer comes with the first step, so that its state is part of
/// what a step needs. On a dry device the batch is zeros.
nn::MakeRun random_run(const Setup& setup);

}  // namespace thimble::models
