#include <thimble/nn/fit/plan_file.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/memory/bytes.h>

namespace thimble::nn {
namespace plan_file_detail {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

/// The tape's plan with the operators of this program.
std::shared_ptr<const TapePlan> with_operators(const std::shared_ptr<const TapePlan>& tape, const TapeGraph& graph) {
  if (!tape) return nullptr;
  auto whole = std::make_shared<TapePlan>(*tape);
  for (const TapeGraph::Node& node : graph.nodes) whole->types.push_back(node.type);
  whole->sizes = graph.sizes();
  whole->ends = graph.ends;
  whole->validate();
  return whole;
}

}  // namespace plan_file_detail

void write_plan(const std::string& path, const Plan& plan) { write_file_atomically(path, plan_to_json(plan)); }

Plan read_plan(const std::string& path, const MakeRun& make, memory::Device device, const MakeTier& make_tier,
               std::size_t steps) {
  const std::vector<std::byte> bytes = read_whole_file(path, plan_file_detail::most_bytes);
  return plan_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, make, device, make_tier,
                        steps);
}

PlanSource plan_file(std::string path) {
  return [path = std::move(path)](const MakeRun& make, memory::Device device, const MakeTier& make_tier) {
    return read_plan(path, make, device, make_tier);
  };
}

Plan plan_from_json(std::string_view json, const std::string& source, const MakeRun& make, memory::Device device,
                    const MakeTier& make_tier, std::size_t steps) {
  using namespace plan_file_detail;
  const memory::Device on = dry(device);
  Plan plan = parse_plan(json, source);
  PlanKey now;
  const TapeGraph graph =
      record_step(on, make, [&](TrainingRun& run, const TapeGraph& recording) { now = plan_key(on, recording, run); });
  if (const std::string why = difference(*plan.key, now); !why.empty()) {
    throw PlanError("plan " + source + " is of another key: " + why);
  }
  plan.tape = with_operators(plan.tape, graph);
  if (plan.tape && plan.tape->offloads()) {
    if (!make_tier) throw PlanError("plan " + source + " offloads tensors, and there is no tier");
    plan.make_tier = make_tier;
  }
  const Plan written = plan;
  count_spills(plan, graph);
  if (plan.offloaded_bytes != written.offloaded_bytes || plan.packed != written.packed ||
      plan.packed_bytes != written.packed_bytes) {
    throw PlanError(
        "plan " + source + " contradicts itself: its tensors that are offloaded or packed have other bytes (" +
        std::to_string(plan.offloaded_bytes) + " and " + std::to_string(plan.packed_bytes) + ") than its figures (" +
        std::to_string(written.offloaded_bytes) + " and " + std::to_string(written.packed_bytes) + ")");
  }
  const MakeRun follow = [&](memory::Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  };
  const MemoryProfile profile = profile_training(on, follow, steps, false, plan.placement);
  if (profile.placed.first_deviation) {
    throw PlanError("plan " + source + " is not kept by a dry run: " + to_string(*profile.placed.first_deviation));
  }
  plan.peak_bytes = profile.peak_bytes;
  plan.peak_by_category = profile.peak_by_category;
  plan.tier_bytes = profile.tier_bytes;
  // With a placement the region counts as one block.
  plan.lower_bound_bytes =
      plan.placement.empty() ? profile.lower_bound_bytes : profile_training(on, follow).lower_bound_bytes;
  return plan;
}

std::string to_text(const Plan& plan) {
  std::string text;
  if (plan.key) {
    text += "plan of " + std::to_string(plan.key->nodes.size()) + " nodes and " +
            std::to_string(plan.key->leaves.size()) + " trained leaves\n  for " + plan.key->machine + ", thimble " +
            plan.key->library + "\n  steps of " + plan.key->step + "\n";
  }
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * plan.time_overhead);
  text += "  peak " + memory::exact_bytes(plan.peak_bytes) + ", load " + memory::exact_bytes(plan.lower_bound_bytes) +
          ", " + percent + " more time by the cost model\n";
  if (!plan.tape) {
    text += "  everything is kept\n";
  } else {
    const auto dropped =
        std::count_if(plan.tape->fates.begin(), plan.tape->fates.end(), [](Fate fate) { return !keeps_output(fate); });
    text += "  " + std::to_string(plan.tape->segments.size()) + " segments that run again; of " +
            std::to_string(plan.tape->fates.size()) + " nodes " + std::to_string(dropped) +
            " drop their result there; " + std::to_string(plan.tape->spills.size()) + " tensors are spilled\n";
  }
  for (std::size_t i = 0; i < plan.placement.size(); ++i) {
    const StepPlacement& step = plan.placement[i];
    text += "  step " + std::to_string(i) + (i + 1 == plan.placement.size() ? " and later" : "") + ": " +
            std::to_string(step.events.size()) + " events, " + std::to_string(step.buffers.size()) + " blocks in " +
            memory::exact_bytes(step.placement.height) + (step.placement.is_optimal ? ", proven least\n" : "\n");
  }
  return text;
}

}  // namespace thimble::nn
