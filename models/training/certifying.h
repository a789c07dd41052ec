#pragma once
// A named model's training run beside itself with something left out: without its plan bit by bit, and without its
// plan's packing gradient by gradient.

#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::models {

/// Runs the first `options.steps` steps of a prepared run, then its evaluation, with everything kept and then under the
/// plan, on the same data (nn/certify/certify.h). Throws ValueError where the plan rounds (`allows_lossy`), or there is
/// none.
nn::Certificate certify_training(const PreparedTraining& prepared);

/// The gradients of a run's next batch with the tensors of its plan packed, against the same plan without that: at the
/// parameters that the run begins with, those of a checkpoint that it goes on from. In an arena of its own, beside any
/// budget. A dynamic loss scale is halved until all gradients are finite, as training would. Nothing is trained on or
/// written. Throws what train() throws before its first step.
nn::GradientReport packing_gradients(const PreparedTraining& prepared);

}  // namespace thimble::models
