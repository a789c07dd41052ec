#include <thimble/nn/fit/spillable.h>

#include <algorithm>

namespace thimble::nn {

std::vector<Spillable> spillables(const TapeGraph& graph) {
  std::vector<Spillable> uses(graph.storages.size());
  for (const TapeGraph::Value& value : graph.values) {
    if (value.storage == TapeGraph::none) continue;
    Spillable& use = uses[value.storage];
    use.bytes = graph.storages[value.storage].bytes;
    use.dtype = value.dtype;
    if (value.is_leaf || value.producer < 0 || value.program_until == TapeGraph::none) {
      use.is_held = true;
    } else {
      use.until = std::max(use.until, value.program_until);
    }
  }
  const auto made = [&](std::uint32_t value, std::uint32_t node, std::int32_t which) {
    const std::uint32_t storage = graph.values[value].storage;
    if (storage == TapeGraph::none || graph.values[value].producer != static_cast<std::int32_t>(node)) return;
    if (uses[storage].node == TapeGraph::none) uses[storage].node = node, uses[storage].which = which;
  };
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    made(node.output, n, TapePlan::Spill::result);
    for (std::size_t k = 0; k < node.saved.size(); ++k) {
      made(node.saved[k], n, node.places[k]);
      const std::uint32_t storage = graph.values[node.saved[k]].storage;
      if (storage != TapeGraph::none) uses[storage].is_saved = true;
    }
  }
  return uses;
}

}  // namespace thimble::nn
