#pragma once
// What plans pack, and what offloading and packing would save.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/models/training/setup.h>

namespace thimble::models {

/// What a plan packs in one recording: a step, or one of its micro-batches.
struct PackedBytes {
  std::size_t bytes = 0;         ///< of saved tensors, before
  std::size_t packed_bytes = 0;  ///< and after, scales included
  std::vector<DType> dtypes;     ///< to which, each once
};
PackedBytes packed_bytes_of(const nn::Plan& plan);

/// "bf16, i8".
std::string to_string(const std::vector<DType>& dtypes);

/// Throws ValueError where the setup allows packing, and no tensor that could be packed is wider than what it names:
/// for tensors in 16 bits bf16 and f16 save nothing. `graph` is of the setup's step.
void check_lossy(const Setup& setup, Device device, const TapeGraph& graph);

/// The smallest plan of a step under options that the setup leaves off.
struct SpillPrice {
  /// "`offload` FOLDER" ("`offload` host" for a GPU), "`allows_lossy`" ("`allows_lossy`=i8" where bf16 is no narrower)
  std::string options;
  std::size_t minimum_bytes = 0;
  double time_overhead = 0;  ///< over keeping everything
};

/// Plans `make`'s step on dry devices with each of them; without the first for a step that is recorded, whose tensors
/// stay on the device. Throws what the planner throws.
std::vector<SpillPrice> price_spilling(const nn::MakeRun& make, const Setup& setup, const nn::CostModel& costs,
                                       Device device, bool is_recorded = false);

/// `error` with the prices in its message: "...; with `offload` FOLDER 123 MiB (...) at 4 % more time".
nn::BudgetError with_prices(const nn::BudgetError& error, const std::vector<SpillPrice>& prices);

}  // namespace thimble::models
