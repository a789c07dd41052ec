#pragma once
// Before the first step of a training run: whether its steps can be captured, and its bytes outside the arena.

#include <cstddef>

#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/outside.h>
#include <thimble/models/training/training.h>

namespace thimble::models {

/// If steps are captured, throws ValueError naming an option that a CUDA graph cannot have: a cpu, tiers, coded
/// weights.
void check_capture(const TrainOptions& options);

// ---- Bytes of a training run outside its arena.

/// The facts that determine the bytes of a run on the cpu outside the arena (memory/process/outside.h): threads of
/// kernels and tiers, nodes of a step, files that it reads or writes, data on the heap.
memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes);
memory::OutsideFacts outside_facts(const PreparedTraining& prepared);

}  // namespace thimble::models
