#pragma once
// The source of a plan's times: a machine's numbers, or the program's operators timed on this machine.

#include <cstddef>
#include <string>

#include <thimble/models/techniques/setup.h>
#include <thimble/nn/fit/measure.h>

namespace thimble::models {

/// Make runs that train `setup` on a constant batch of zeros or of random values, for dry runs and timing. On a dry
/// device both are zeros.
nn::MakeRun zero_batch_run(const Setup& setup);
nn::MakeRun random_run(const Setup& setup);

struct CostOptions {
  std::string hardware;   ///< a machine's name; if empty, hardware_for chooses
  bool measures = false;  ///< times the operators first, on this machine
  std::string times;      ///< an optional file of measured times: read, or written when measuring
  std::string gpu = {};   ///< the installed GPU, as its driver names it; `hardware` overrides it
};

/// The named machine, else the installed GPU, else h100-80gb for a CUDA device or cpu for the cpu. Throws ValueError
/// for an unknown name.
nn::Hardware hardware_for(const CostOptions& options, memory::Device device);

/// Throws ValueError for TF32 on the cpu.
void check_tf32(bool allows_tf32, memory::Device device);

/// The cost model for plans of `setup` on `device`. Measuring runs eight steps of 2^k times `micro_batches` samples,
/// the most that take about a second per step and stay within the batch and the budget, if there is one. Throws
/// ValueError (only the cpu can be measured), FileError, and BudgetError when one sample per micro-batch exceeds the
/// budget.
nn::CostModel plan_costs(const Setup& setup, const CostOptions& options, std::size_t budget_bytes,
                         memory::Device device = cpu);

}  // namespace thimble::models
