#pragma once
// Training runs whose steps are recorded as a CUDA graph (nn/step/recorded_step.h): what is asked before
// the first step.

#include <thimble/models/training/training.h>

namespace thimble::models {

/// Throws ValueError that names the option for what a recording cannot carry: a device without graphs, tiers. Nothing
/// where steps are not recorded.
void check_recording(const TrainOptions& options);

/// Where the blocks of the steps of a prepared run's plan go, and what the run needs then: a recording repeats
/// addresses. Throws PlanError when a dry run with that placement leaves it.
void place_recorded(PreparedTraining& prepared);

/// The fastest plan whose steps, placed and recorded, keep the run's budget. `prepared` has no plan of its own, and
/// none after it. Throws BudgetError.
nn::Plan fit_recorded(nn::Planner& planner, PreparedTraining& prepared);

}  // namespace thimble::models
