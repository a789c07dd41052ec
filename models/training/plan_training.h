#pragma once
// Before the first step of a training run: whether its steps can be captured, and its bytes outside of the arena.

#include <cstddef>

#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/outside.h>
#include <thimble/models/training/training.h>

namespace thimble::models {

/// Throws ValueError, naming the option, for settings that a graph cannot have: a device without graphs, tiers. Does
/// nothing if steps are not captured.
void check_capture(const TrainOptions& options);

// ---- Bytes of a training run outside of its arena, and budgets for the whole process.

/// Properties of a run on the cpu that determine its bytes outside of the arena (memory/process/outside.h): the threads
/// of its kernels and tiers, the nodes of a step, files that it reads or writes, and its data on the heap.
memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes);
/// Those of a prepared run.
memory::OutsideFacts outside_facts(const PreparedTraining& prepared);

}  // namespace thimble::models
