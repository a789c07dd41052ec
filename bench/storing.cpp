#include <thimble/bench/storing.h>

#include <cmath>
#include <memory>

#include <thimble/memory/bytes.h>
#include <thimble/memory/device_tier.h>

namespace thimble::bench {

std::vector<StoringPrice> price_storing(const nn::MakeRun& make, const Setup& setup, const nn::CostModel& costs,
                                        Device device, bool is_recorded) {
  std::vector<StoringPrice> prices;
  const auto add = [&](const char* flags, const nn::PlannerOptions& options) {
    nn::Planner planner(make, device, costs, options);
    const nn::Plan& least = planner.smallest();
    prices.push_back({flags, least.peak_bytes, least.time_overhead});
  };
  nn::PlannerOptions options;
  if (setup.offload.empty() && !is_recorded) {
    options.storing.offloads = true;
    options.make_tier = [](Device on) { return memory::make_tier(on); };  // dry: it has no folder
    add(device.is_cuda() ? "--offload host" : "--offload FOLDER", options);
  }
  if (!setup.allows_lossy) {
    options = planner_options(setup, device);
    options.storing.packs = true;
    add("--allow-lossy", options);
  }
  return prices;
}

nn::BudgetError with_prices(const nn::BudgetError& error, const std::vector<StoringPrice>& prices) {
  std::string message = error.what();
  for (const StoringPrice& price : prices) {
    message += "; with " + price.flags + " " + memory::exact_bytes(price.minimum_bytes) + " at " +
               std::to_string(std::lround(100 * price.time_overhead)) + " % more time";
  }
  return {message, error.budget_bytes(), error.minimum_bytes()};
}

}  // namespace thimble::bench
