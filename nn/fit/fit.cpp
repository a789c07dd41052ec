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
    const memory::Stack stack = memory::make_resource(device_);
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
  const double fastest = static_cast<double>(frontiers.front().points().back().time);
  std::vector<Plan> all;
  for (const fit_detail::Candidate& candidate : fit_detail::best(std::move(candidates), fit_detail::candidate_count)) {
    const remat::Plan of_chain = frontiers[candidate.chain].plan(candidate.budget_bytes);
    auto tape = std::make_shared<TapePlan>(make_tape_plan(chains[candidate.chain], of_chain));
    Plan plan = run_dry(tape->segments.empty() ? nullptr : std::move(tape));
    plan.description = remat::to_string(of_chain);
    plan.step_s = static_cast<double>(candidate.time) * 1e-9;
    plan.time_overhead = static_cast<double>(candidate.time) / fastest - 1;
    all.push_back(std::move(plan));
  }
  std::stable_sort(all.begin(), all.end(), [](const Plan& a, const Plan& b) { return a.step_s < b.step_s; });
  // From the fastest on: a slower plan must need less.
  for (Plan& plan : all) {
    if (plans_.empty() || plan.peak_bytes < plans_.back().peak_bytes) plans_.push_back(std::move(plan));
  }
  std::reverse(plans_.begin(), plans_.end());
}

Plan Planner::run_dry(std::shared_ptr<const TapePlan> tape) const {
  const MakeRun make = [&](Device device) {
    std::unique_ptr<TrainingRun> run = make_(device);
    run->options().recording.plan = tape;
    return run;
  };
  const MemoryProfile profile = profile_training(device_, make);
  Plan plan;
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  plan.tape = std::move(tape);
  return plan;
}

const Plan& Planner::fit(std::size_t budget_bytes) const {
  const auto above = std::upper_bound(plans_.begin(), plans_.end(), budget_bytes,
                                      [](std::size_t budget, const Plan& plan) { return budget < plan.peak_bytes; });
  if (above == plans_.begin()) {
    throw BudgetError("fit: no plan needs as little as " + memory::exact_bytes(budget_bytes) + "; the smallest needs " +
                          memory::exact_bytes(minimum_bytes()) + " at " +
                          std::to_string(static_cast<int>(100 * plans_.front().time_overhead + 0.5)) +
                          " % more time, keeping everything " + memory::exact_bytes(keep_everything().peak_bytes),
                      budget_bytes, minimum_bytes());
  }
  return *std::prev(above);
}

}  // namespace thimble::nn
