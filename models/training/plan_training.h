#pragma once
// Training runs whose steps are captured as a CUDA graph (nn/step/captured_step.h): the checks and plans before the
// first step.

#include <cstddef>

#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/outside.h>
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

// ---- What a training run takes of the process beside its arena, and budgets for the whole process.

/// What of a run on the cpu decides about its bytes outside of the arena (memory/process/outside.h): the threads of its
/// kernels and tiers, the nodes of a step, files that it reads or writes, and what its data have on the heap.
memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes);
/// Those of a prepared run.
memory::OutsideFacts outside_facts(const PreparedTraining& prepared);

/// Nodes of a step's recording, by a dry one; of a micro-batch, or of the whole batch while their number is open.
std::size_t count_nodes(PreparedTraining& prepared);

/// Plans a run (by `plan`, for prepared.options.budget_bytes) so that arena and outside are within
/// options.process_budget_bytes; a smaller budget of its own holds as well. Throws BudgetError.
void fit_process(PreparedTraining& prepared, const std::function<void()>& plan);

}  // namespace thimble::models
