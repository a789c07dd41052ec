#include <thimble/models/techniques/spilling.h>

#include <algorithm>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/quant/pack.h>
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

std::vector<DType> narrower_dtypes(const TapeGraph& graph) {
  std::vector<DType> list;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    if (!nn::packable_operators(graph, dtype, 0).empty()) list.push_back(dtype);
  }
  return list;
}

void check_lossy(const Setup& setup, memory::Device device, const TapeGraph& graph) {
  if (!setup.allows_lossy || spilling_detail::packs(graph, planner_options(setup, device).spilling)) return;
  const std::string others = to_string(narrower_dtypes(graph));
  throw ValueError(
      "`allows_lossy`: " + std::string(to_string(setup.lossy)) + " is no narrower than what backward keeps of " +
      setup.model + " " +
      (setup.precision.empty() ? "`dtype` " + std::string(to_string(setup.dtype)) : "`precision` " + setup.precision) +
      ", so that it would save nothing; expected " + (others.empty() ? "nothing narrower" : others));
}

}  // namespace thimble::models
