#include <thimble/nn/fit/pack_all.h>

#include <algorithm>

#include <thimble/core/pack.h>

namespace thimble::nn {
namespace pack_all_detail {

// What is known of a storage.
struct Use {
  std::uint32_t node = TapeGraph::none;  // whose result it is
  std::uint32_t until = 0;               // the program holds it
  DType dtype = DType::f32;
  bool is_held = false;   // for longer than the tape can tell, or by a leaf
  bool is_saved = false;  // a backward reads it
};

std::vector<Use> uses_of(const TapeGraph& graph) {
  std::vector<Use> uses(graph.storages.size());
  for (const TapeGraph::Value& value : graph.values) {
    if (value.storage == TapeGraph::none) continue;
    Use& use = uses[value.storage];
    use.dtype = value.dtype;
    if (value.is_leaf || value.producer < 0 || value.program_until == TapeGraph::none) {
      use.is_held = true;
    } else {
      use.until = std::max(use.until, value.program_until);
    }
  }
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const TapeGraph::Node& node = graph.nodes[n];
    const TapeGraph::Value& output = graph.values[node.output];
    const bool is_made_here = output.producer == static_cast<std::int32_t>(n);
    if (output.storage != TapeGraph::none && is_made_here && uses[output.storage].node == TapeGraph::none) {
      uses[output.storage].node = n;
    }
    for (std::size_t k = 0; k < node.saved.size(); ++k) {
      const std::uint32_t storage = graph.values[node.saved[k]].storage;
      if (storage != TapeGraph::none) uses[storage].is_saved = true;
    }
  }
  return uses;
}

}  // namespace pack_all_detail

TapePlan pack_all(const TapeGraph& graph, const Storing& storing) {
  TapePlan plan;
  for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
  plan.fates.assign(plan.types.size(), Fate::keep);
  const std::vector<pack_all_detail::Use> uses = pack_all_detail::uses_of(graph);
  for (std::size_t s = 0; s < uses.size(); ++s) {
    const pack_all_detail::Use& use = uses[s];
    if (use.is_held || !use.is_saved || use.node == TapeGraph::none) continue;
    const std::uint32_t after = std::max(use.until, use.node);
    if (after + 1 >= graph.nodes.size() || graph.storages[s].bytes < storing.smallest) continue;
    const std::optional<DType> to =
        storing.policy != nullptr ? storing.policy(*plan.types[use.node]) : std::optional(storing.packed);
    if (!to || !can_pack(use.dtype, *to)) continue;
    plan.stores.push_back({use.node, TapePlan::Store::result, TapePlan::Store::Form::pack, *to, after, after, after});
  }
  return plan;
}

Plan packed_plan(const MakeRun& make, Device device, const Storing& storing) {
  const Device on = dry(device);
  TapeGraph graph;
  {
    const memory::Stack stack = memory::make_resource(on, profile_options(on));
    const ResourceScope scope(stack.top);
    const std::unique_ptr<TrainingRun> run = make(on);
    run->options().recording.graph = &graph;
    run->step();
  }
  Plan plan;
  plan.tape = std::make_shared<TapePlan>(pack_all(graph, storing));
  plan.description = "everything that can be is packed to " + std::string(to_string(storing.packed));
  for (const TapePlan::Store& store : plan.tape->stores) {
    plan.packed_bytes += graph.bytes_of(graph.nodes[store.node].output);
  }
  const MemoryProfile profile = profile_training(on, [&](Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  });
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  return plan;
}

}  // namespace thimble::nn
