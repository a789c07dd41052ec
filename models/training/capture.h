#pragma once
// Training runs whose steps are captured as a CUDA graph (nn/step/captured_step.h): the checks and plans before the
// first step.

#include <thimble/models/training/training.h>

namespace thimble::models {

/// Throws ValueError, naming the option, for what a graph cannot carry: a device without graphs, tiers. Does nothing
/// where steps are not captured.
void check_capture(const TrainOptions& options);

/// Places the blocks of the steps of a prepared run's plan, because a graph repeats addresses, and notes what the run
/// needs then. Throws PlanError when a dry run with that placement leaves it.
void place_captured(PreparedTraining& prepared);

/// The fastest plan whose steps, placed and captured, keep the run's budget. `prepared` has no plan of its own, and
/// none after it. Throws BudgetError.
nn::Plan fit_captured(nn::Planner& planner, PreparedTraining& prepared);

}  // namespace thimble::models
