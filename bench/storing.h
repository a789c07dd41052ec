#pragma once
// What offloading and packing would allow, for those who did not ask for them.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/bench/setup.h>

namespace thimble::bench {

/// The smallest plan of a step under flags that the setup leaves off.
struct StoringPrice {
  std::string flags;  ///< "--offload FOLDER" ("--offload host" for a GPU), "--allow-lossy"
  std::size_t minimum_bytes = 0;
  double time_overhead = 0;  ///< over keeping everything
};

/// Plans `make`'s step on dry devices with each of them; without the first for a step that is recorded, whose tensors
/// stay on the device. Throws what the planner throws.
std::vector<StoringPrice> price_storing(const nn::MakeRun& make, const Setup& setup, const nn::CostModel& costs,
                                        Device device, bool is_recorded = false);

/// `error` with the prices in its message: "...; with --offload FOLDER 123 MiB (...) at 4 % more time".
nn::BudgetError with_prices(const nn::BudgetError& error, const std::vector<StoringPrice>& prices);

}  // namespace thimble::bench
