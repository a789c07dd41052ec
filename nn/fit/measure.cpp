#include <thimble/nn/fit/measure.h>

#include <algorithm>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>

namespace thimble::nn {
namespace {

constexpr int steps = 4;  // the first one faults in pages, and does not count

/// The least time of each node over several steps.
TapeTimes fastest(const MakeRun& make, memory::Device device, const std::shared_ptr<const TapePlan>& plan) {
  const memory::Stack stack = memory::make_resource(device);
  const ResourceScope scope(stack.top);
  const std::unique_ptr<TrainingRun> run = make(device);
  run->options().recording.plan = plan;
  TapeTimes least, now;
  run->options().recording.times = &now;
  for (int step = 0; step < steps; ++step) {
    run->step();
    if (step > 0) least.keep_least(now);
  }
  return least;
}

/// Recomputes, once, each operator that can make its result from its saved tensors.
std::shared_ptr<const TapePlan> recompute_all(const TapeGraph& graph) {
  auto plan = std::make_shared<TapePlan>();
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const OpType* const type = graph.nodes[n].type;
    plan->types.push_back(type);
    plan->fates.push_back(type->has_output_from_saved ? Fate::keep_saved : Fate::keep);
    if (type->has_output_from_saved) plan->segments.push_back({n, n + 1, TapePlan::none});
  }
  return plan;
}

double factor(double measured, double roofline) { return measured > 0 && roofline > 0 ? measured / roofline : 1; }

}  // namespace

CostModel measure_costs(const MakeRun& make, memory::Device device, const Hardware& machine) {
  if (device.is_dry) {
    throw ValueError("measure_costs: " + to_string(device) + " runs nothing; expected a device that is there");
  }
  const TapeGraph graph = record_step(device, make);
  CostModel costs(machine);
  const std::vector<NodeTimes> roofline = node_times(graph, costs);
  const TapeTimes times = fastest(make, device, nullptr);
  const TapeTimes again = fastest(make, device, recompute_all(graph));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    NodeFactors f;
    f.forward = factor(times.forward[n], roofline[n].forward);
    f.backward = factor(times.backward[n], roofline[n].backward);
    const bool is_shorter = graph.nodes[n].type->has_output_from_saved && again.recompute[n] > 0;
    f.recompute = is_shorter ? factor(again.recompute[n], roofline[n].recompute) : f.forward;
    costs.operators.push_back(operator_text(graph, n));
    costs.factors.push_back(f);
  }
  costs.source = machine.name + ": each operator as measured";
  return costs;
}

}  // namespace thimble::nn
