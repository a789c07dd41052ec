#include <thimble/nn/fit/fit.h>

#include <algorithm>
#include <utility>

#include <thimble/core/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/remat/frontier.h>

namespace thimble::nn {
namespace fit_detail {

constexpr std::size_t candidate_count = 48;

/// A plan of one of the chains, by the solver's numbers.
struct Candidate {
  std::size_t chain;
  remat::Bytes budget_bytes;
  remat::Time time;
};

/// Those that no other one betters in both numbers, by rising time; at most `count`, spread evenly, both ends among
/// them.
std::vector<Candidate> best(std::vector<Candidate> all, std::size_t count) {
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.time != b.time ? a.time < b.time : a.budget_bytes < b.budget_bytes;
  });
  std::vector<Candidate> front;
  for (const Candidate& candidate : all) {
    if (front.empty() || candidate.budget_bytes < front.back().budget_bytes) front.push_back(candidate);
  }
  if (front.size() <= count) return front;
  std::vector<Candidate> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(front[i * (front.size() - 1) / (count - 1)]);
  return some;
}

}  // namespace fit_detail

Planner::Planner(MakeRun make, Device device, const Hardware& hardware) : make_(std::move(make)), device_(dry(device)) {
  {
    const memory::Stack stack = memory::make_resource(device_, profile_options(device_));
    const ResourceScope scope(stack.top);
    const std::unique_ptr<TrainingRun> run = make_(device_);
    parameters_ = run->parameters();
    run->options().recording.graph = &graph_;
    run->step();
  }
  const std::vector<NodeTimes> times = node_times(graph_, hardware);
  const std::vector<std::uint32_t> cuts = cut_points(graph_);
  std::vector<StagedGraph> chains;
  std::vector<remat::Frontier> frontiers;
  std::vector<fit_detail::Candidate> candidates;
  std::vector<std::size_t> crossing;
  for (std::size_t i = 1; i < cuts.size(); ++i) crossing.push_back(graph_.bytes_of(graph_.nodes[cuts[i] - 1].output));
  for (const std::vector<std::size_t>& sizes : groupings(crossing)) {
    std::vector<std::uint32_t> some{0};
    std::size_t at = 0;
    for (const std::size_t size : sizes) some.push_back(cuts[at += size]);
    chains.push_back(make_stages(graph_, times, some));
    frontiers.emplace_back(chains.back().chain);
    for (const auto& point : frontiers.back().points()) {
      candidates.push_back({chains.size() - 1, point.budget_bytes, point.time});
    }
  }
  // Rounding to nanoseconds, stage by stage, may make a joined chain a little faster than it is.
  const remat::Time fastest = frontiers.front().points().back().time;
  const auto count_time = [&](Plan& plan, remat::Time time) {
    plan.step_s = static_cast<double>(std::max(time, fastest)) * 1e-9;
    plan.time_overhead = static_cast<double>(std::max(time, fastest)) / static_cast<double>(fastest) - 1;
  };
  candidates_.push_back(run_dry(nullptr));
  count_time(candidates_.back().plan, fastest);
  keep_everything_ = candidates_.back().plan;
  for (const fit_detail::Candidate& candidate : fit_detail::best(std::move(candidates), fit_detail::candidate_count)) {
    const remat::Plan of_chain = frontiers[candidate.chain].plan(candidate.budget_bytes);
    auto tape = std::make_shared<TapePlan>(make_tape_plan(chains[candidate.chain], of_chain));
    if (tape->segments.empty()) continue;
    candidates_.push_back(run_dry(std::move(tape)));
    candidates_.back().plan.description = remat::to_string(of_chain);
    count_time(candidates_.back().plan, candidate.time);
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.plan.step_s != b.plan.step_s ? a.plan.step_s < b.plan.step_s
                                          : a.plan.lower_bound_bytes < b.plan.lower_bound_bytes;
  });
}

MakeRun Planner::run_with(std::shared_ptr<const TapePlan> tape) const {
  return [make = make_, tape = std::move(tape)](Device device) {
    std::unique_ptr<TrainingRun> run = make(device);
    run->options().recording.plan = tape;
    return run;
  };
}

Planner::Candidate Planner::run_dry(std::shared_ptr<const TapePlan> tape) const {
  MemoryProfile profile = profile_training(device_, run_with(tape), 2, true);
  Candidate candidate;
  candidate.plan.tape = std::move(tape);
  candidate.plan.peak_bytes = profile.peak_bytes;
  candidate.plan.lower_bound_bytes = profile.lower_bound_bytes;
  candidate.plan.peak_by_category = profile.peak_by_category;
  candidate.events = std::move(profile.events);
  candidate.step_ends = std::move(profile.step_ends);
  candidate.setup_end = profile.setup_end;
  return candidate;
}

const Plan& Planner::place(Candidate& candidate) {
  if (candidate.is_placed) return candidate.plan;
  memory::PlacementOptions options = placement_options(device_);
  options.last_stage = memory::PlacementStage::improvement;
  MemoryProfile dynamic;
  dynamic.events = std::move(candidate.events);
  dynamic.step_ends = std::move(candidate.step_ends);
  dynamic.setup_end = candidate.setup_end;
  std::vector<StepPlan> placement = plan_steps(dynamic, options);
  const MemoryProfile placed = profile_training(device_, run_with(candidate.plan.tape), 2, false, placement);
  if (placed.peak_bytes <= candidate.plan.peak_bytes) {
    candidate.plan.peak_bytes = placed.peak_bytes;
    candidate.plan.peak_by_category = placed.peak_by_category;
    candidate.plan.placement = std::move(placement);
  }
  candidate.is_placed = true;
  return candidate.plan;
}

const Plan& Planner::fit(std::size_t budget_bytes) {
  for (Candidate& candidate : candidates_) {
    if (candidate.plan.lower_bound_bytes > budget_bytes) continue;
    if (place(candidate).peak_bytes <= budget_bytes) return candidate.plan;
  }
  const Plan& least = smallest();
  throw BudgetError("fit: no plan needs as little as " + memory::exact_bytes(budget_bytes) + "; the smallest needs " +
                        memory::exact_bytes(least.peak_bytes) + " at " +
                        std::to_string(static_cast<int>(100 * least.time_overhead + 0.5)) +
                        " % more time, keeping everything " + memory::exact_bytes(keep_everything_.peak_bytes),
                    budget_bytes, least.peak_bytes);
}

const Plan& Planner::smallest() {
  std::vector<Candidate*> by_bound;
  for (Candidate& candidate : candidates_) by_bound.push_back(&candidate);
  std::stable_sort(by_bound.begin(), by_bound.end(), [](const Candidate* a, const Candidate* b) {
    return a->plan.lower_bound_bytes < b->plan.lower_bound_bytes;
  });
  const Plan* least = nullptr;
  for (Candidate* const candidate : by_bound) {
    if (least != nullptr && candidate->plan.lower_bound_bytes >= least->peak_bytes) break;
    const Plan& plan = place(*candidate);
    if (least == nullptr || plan.peak_bytes < least->peak_bytes) least = &plan;
  }
  return *least;
}

std::vector<Plan> Planner::plans() {
  std::vector<Plan> front;
  for (Candidate& candidate : candidates_) {
    const Plan& plan = place(candidate);
    if (front.empty() || plan.peak_bytes < front.back().peak_bytes) front.push_back(plan);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

}  // namespace thimble::nn
