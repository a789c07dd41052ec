#pragma once
// The source of a plan's times: a machine's numbers, or times of the program's operators measured here.

#include <cstddef>
#include <string>

#include <thimble/models/techniques/setup.h>
#include <thimble/nn/fit/measure.h>

namespace thimble::models {

/// Makes runs that train `setup` on a constant batch of zeros, or of random values, on the device: for dry runs, and to
/// measure and time them. On a dry device both are zeros.
nn::MakeRun zero_batch_run(const Setup& setup);
nn::MakeRun random_run(const Setup& setup);

struct CostOptions {
  std::string hardware;   ///< whose numbers are used; empty: those of hardware_for's choice
  bool measures = false;  ///< the operators are timed first, on this machine
  std::string times;      ///< a file of measured times: read, or written when measuring; empty: none
  std::string gpu = {};   ///< installed one, by its driver's name: its numbers are used unless hardware is named
};

/// The named machine, or the GPU, or for a run on `device` the cpu, or without an installed GPU h100-80gb. Throws
/// ValueError for an unknown name.
nn::Hardware hardware_for(const CostOptions& options, memory::Device device);

/// Throws ValueError for TF32 on the cpu, which has none.
void check_tf32(bool allows_tf32, memory::Device device);

/// The cost model for plans of `setup` on `device`. Measuring runs eight steps with the largest power of two of samples
/// that takes about a second a step (times the number of micro-batches) and stays within the batch and the budget, if
/// any. Throws ValueError (another machine than cpu cannot be measured), FileError, and BudgetError when one sample
/// needs more than the budget.
nn::CostModel plan_costs(const Setup& setup, const CostOptions& options, std::size_t budget_bytes,
                         memory::Device device = cpu);

}  // namespace thimble::models
