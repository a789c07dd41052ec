#pragma once
// Compares a named model's training run with one without its plan, bit by bit, and with one without its plan's packing,
// gradient by gradient.

#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::models {

/// Runs the first `options.steps` steps of a prepared run, then its evaluation, with everything kept and then under the
/// plan, on the same data (nn/certify/certify.h). Throws ValueError if the plan rounds (`allows_lossy`), or there is
/// none.
nn::Certificate certify_training(const PreparedTraining& prepared);

/// Compares the gradients of a run's next batch under its plan with those under the same plan without packing. The
/// parameters are the ones that the run begins with, from its checkpoint if it resumes. Uses a separate arena, outside
/// any budget. Halves a dynamic loss scale until all gradients are finite, as training would. Trains and writes
/// nothing. Throws what train() throws before its first step.
nn::GradientReport packing_gradients(const PreparedTraining& prepared);

}  // namespace thimble::models
