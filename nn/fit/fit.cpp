#include <thimble/nn/fit/fit.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <thimble/core/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/remat/frontier.h>

namespace thimble::nn {
namespace fit_detail {

constexpr std::size_t candidate_count = 48;

using Points = std::span<const remat::Frontier::Point>;

/// At most `count` points of a frontier, both ends among them, spread evenly over its bytes.
std::vector<remat::Frontier::Point> spread(Points points, std::size_t count) {
  std::vector<remat::Frontier::Point> some;
  const double begin = static_cast<double>(points.front().budget_bytes);
  const double step = (static_cast<double>(points.back().budget_bytes) - begin) / static_cast<double>(count - 1);
  for (const remat::Frontier::Point& point : points) {
    // The last one within each step: the fastest.
    const auto at = [&](const auto& p) { return std::ceil((static_cast<double>(p.budget_bytes) - begin) / step); };
    if (some.size() > 1 && at(some.back()) == at(point)) some.pop_back();
    some.push_back(point);
  }
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
  const StagedGraph staged = make_stages(graph_, times, cuts);
  const remat::Frontier frontier(staged.chain);
  const remat::Time fastest = frontier.points().back().time;
  const auto count_time = [&](Plan& plan, remat::Time time) {
    plan.step_s = static_cast<double>(time) * 1e-9;
    plan.time_overhead = static_cast<double>(time) / static_cast<double>(fastest) - 1;
  };
  keep_everything_ = run_dry(nullptr);
  count_time(keep_everything_, fastest);
  std::vector<Plan> all{keep_everything_};
  for (const remat::Frontier::Point& point : fit_detail::spread(frontier.points(), fit_detail::candidate_count)) {
    const remat::Plan of_chain = frontier.plan(point.budget_bytes);
    auto tape = std::make_shared<TapePlan>(make_tape_plan(staged, of_chain));
    if (tape->segments.empty()) continue;
    Plan plan = run_dry(std::move(tape));
    plan.description = remat::to_string(of_chain);
    count_time(plan, point.time);
    all.push_back(std::move(plan));
  }
  std::stable_sort(all.begin(), all.end(), [](const Plan& a, const Plan& b) {
    return a.step_s != b.step_s ? a.step_s < b.step_s : a.peak_bytes < b.peak_bytes;
  });
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
