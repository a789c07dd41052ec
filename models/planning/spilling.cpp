#include <thimble/models/planning/spilling.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/quant/pack.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/offload/device_tier.h>
#include <thimble/nn/fit/spillable.h>

namespace thimble::models {
namespace spilling_detail {

/// Whether a result that backward reads, however small, can be packed so.
bool packs(const TapeGraph& graph, nn::SpillPolicy spilling) {
  spilling.smallest = 0;
  const std::vector<nn::Spillable> uses = nn::spillables(graph);
  return std::any_of(uses.begin(), uses.end(),
                     [&](const nn::Spillable& use) { return spilling.packed_as(graph, use).has_value(); });
}

std::vector<DType> narrower(const TapeGraph& graph) {
  std::vector<DType> list;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    if (!nn::packable_operators(graph, dtype, 0).empty()) list.push_back(dtype);
  }
  return list;
}

}  // namespace spilling_detail

PackedBytes packed_bytes_of(const nn::Plan& plan) {
  PackedBytes packing;
  for (const nn::PackedResults& results : plan.packed) {
    packing.bytes += results.bytes;
    packing.packed_bytes += results.packed_bytes;
    if (std::find(packing.dtypes.begin(), packing.dtypes.end(), results.dtype) == packing.dtypes.end()) {
      packing.dtypes.push_back(results.dtype);
    }
  }
  return packing;
}

std::string to_string(const std::vector<DType>& dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(to_string(dtype));
  return text;
}

void check_lossy(const Setup& setup, Device device, const TapeGraph& graph) {
  if (!setup.allows_lossy || spilling_detail::packs(graph, planner_options(setup, device).spilling)) return;
  const std::string others = to_string(spilling_detail::narrower(graph));
  throw ValueError(
      "`allows_lossy`: " + std::string(to_string(setup.lossy)) + " is no narrower than what backward keeps of " +
      setup.model + " " +
      (setup.precision.empty() ? "`dtype` " + std::string(to_string(setup.dtype)) : "`precision` " + setup.precision) +
      ", so that it would save nothing; " + (others.empty() ? "nothing narrower" : others) + " is allowed");
}

std::vector<SpillPrice> price_spilling(const nn::MakeRun& make, const Setup& setup, const nn::CostModel& costs,
                                       Device device, bool is_recorded) {
  std::vector<SpillPrice> prices;
  const auto add = [&](const std::string& with, const nn::PlannerOptions& options) {
    nn::Planner planner(make, device, costs, options);
    const nn::Plan& least = planner.smallest();
    prices.push_back({with, least.peak_bytes, least.time_overhead});
  };
  nn::PlannerOptions options;
  if (setup.offload.empty() && !is_recorded) {
    options.spilling.offloads = true;
    options.make_tier = [](Device on) { return memory::make_tier(on); };  // dry: it has no folder
    add(device.is_cuda() ? "`offload` host" : "`offload` FOLDER", options);
  }
  if (!setup.allows_lossy) {
    options = planner_options(setup, device);
    options.spilling.packs = true;
    const std::vector<DType> narrower = spilling_detail::narrower(nn::record_step(device, make));
    if (narrower.empty()) return prices;
    options.spilling.packed = narrower.front() == setup.lossy ? setup.lossy : narrower.back();
    add(narrower.front() == setup.lossy ? "`allows_lossy`"
                                        : "`allows_lossy`=" + std::string(to_string(narrower.back())),
        options);
  }
  return prices;
}

nn::BudgetError with_prices(const nn::BudgetError& error, const std::vector<SpillPrice>& prices) {
  std::string message = error.what();
  for (const SpillPrice& price : prices) {
    message += "; with " + price.options + " " + memory::exact_bytes(price.minimum_bytes) + " at " +
               std::to_string(std::lround(100 * price.time_overhead)) + " % more time";
  }
  return {message, error.budget_bytes(), error.minimum_bytes()};
}

}  // namespace thimble::models
