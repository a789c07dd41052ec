#include <thimble/nn/fit/pack_all.h>

#include <algorithm>

#include <thimble/core/ops/quant/pack.h>
#include <thimble/nn/fit/spillable.h>

namespace thimble::nn {

TapePlan pack_all(const TapeGraph& graph, const SpillPolicy& spilling) {
  check_rules(graph, spilling);
  TapePlan plan;
  for (const TapeGraph::Node& node : graph.nodes) plan.types.push_back(node.type);
  plan.sizes = graph.sizes();
  plan.fates.assign(plan.types.size(), Fate::keep);
  const std::vector<Spillable> uses = spillables(graph);
  for (std::size_t s = 0; s < uses.size(); ++s) {
    const Spillable& use = uses[s];
    const std::optional<DType> to = spilling.packed_as(graph, use);
    const std::uint32_t after = std::max(use.until, use.node);
    if (!to || after + 1 >= graph.nodes.size()) continue;
    plan.spills.push_back({use.node, TapePlan::Spill::result, TapePlan::Spill::Form::pack, *to, after, after, after});
  }
  return plan;
}

Plan packed_plan(const MakeRun& make, memory::Device device, const SpillPolicy& spilling) {
  const memory::Device on = dry(device);
  const TapeGraph graph = record_step(on, make);
  Plan plan;
  plan.tape = std::make_shared<TapePlan>(pack_all(graph, spilling));
  plan.description = spilling.rules.empty()
                         ? "everything that can be is packed to " + std::string(to_string(spilling.packed))
                         : "everything that can be is packed, by operator";
  count_spills(plan, graph);
  const MemoryProfile profile = profile_training(on, [&](memory::Device target) {
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
