#pragma once
// What the packing of a run's plan does to its gradients.

#include <thimble/models/training/training.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::models {

/// The gradients of a run's next batch with the tensors of its plan packed, against the same plan without that: at the
/// parameters that the run begins with, those of a checkpoint that it goes on from. In an arena of its own, beside any
/// budget. A dynamic loss scale is halved until all gradients are finite, as training would. Nothing is trained on or
/// written. Throws what train() throws before its first step.
nn::GradientReport packing_gradients(const PreparedTraining& prepared);

}  // namespace thimble::models
