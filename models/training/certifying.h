#pragma once
// Compares a named model's training run with a run without its plan, bit by bit, and with a run without packing,
// gradient by gradient.

#include <thimble/models/training/training.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::models {

/// Runs `options.steps` steps of a prepared run and its evaluation twice, keeping everything and under the plan, on the
/// same data (nn/certify/certify.h). Throws ValueError without a plan, and if the plan may round (`allows_lossy`).
nn::Certificate certify_training(const PreparedTraining& prepared);

/// Compares the gradients of a run's next batch under its plan with and without packing, at the parameters that the run
/// begins with, from its checkpoint if it resumes. Uses a separate arena, outside any budget. Halves a dynamic loss
/// scale until all gradients are finite, as training would. Trains and writes nothing. Throws as train() does before
/// its first step.
nn::GradientReport packing_gradients(const PreparedTraining& prepared);

}  // namespace thimble::models
