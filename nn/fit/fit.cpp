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

constexpr std::size_t candidate_count = 48;   // points of the frontier that are run, spread over its bytes
constexpr std::size_t refinement_count = 24;  // further ones, where neighbouring plans lie far apart

/// At most `count` points of a frontier, by index, both ends among them: in each of equal steps of bytes the last one,
/// which is the fastest.
std::vector<std::size_t> spread(std::span<const remat::Frontier::Point> points, std::size_t count) {
  const double begin = static_cast<double>(points.front().budget_bytes);
  const double step = (static_cast<double>(points.back().budget_bytes) - begin) / static_cast<double>(count - 1);
  const auto place = [&](std::size_t i) {
    return std::ceil((static_cast<double>(points[i].budget_bytes) - begin) / step);
  };
  std::vector<std::size_t> some;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (some.size() > 1 && place(some.back()) == place(i)) some.pop_back();
    some.push_back(i);
  }
  return some;
}

/// A plan that was run, and the point of the frontier that it came from.
struct Candidate {
  std::size_t point;
  Plan plan;
};

/// Those that none is as fast as with as few bytes, by rising bytes.
std::vector<Candidate> best(std::vector<Candidate> all) {
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.plan.step_s != b.plan.step_s ? a.plan.step_s < b.plan.step_s : a.plan.peak_bytes < b.plan.peak_bytes;
  });
  std::vector<Candidate> front;  // from the fastest on: a slower plan must need less
  for (Candidate& candidate : all) {
    if (front.empty() || candidate.plan.peak_bytes < front.back().plan.peak_bytes)
      front.push_back(std::move(candidate));
  }
  std::reverse(front.begin(), front.end());
  return front;
}

/// The point of the frontier to run next: in the middle of those between the two neighbours that lie farthest apart in
/// bytes and have one between them that was not run. The number of points when none lie farther apart than a fiftieth
/// of the range.
std::size_t next_point(const std::vector<Candidate>& front, const std::vector<bool>& was_run) {
  std::size_t widest = (front.back().plan.peak_bytes - front.front().plan.peak_bytes) / 50;
  std::size_t next = was_run.size();
  for (std::size_t i = 0; i + 1 < front.size(); ++i) {
    const std::size_t width = front[i + 1].plan.peak_bytes - front[i].plan.peak_bytes;
    if (width <= widest) continue;
    std::vector<std::size_t> between;
    for (std::size_t p = front[i].point + 1; p < front[i + 1].point; ++p) {
      if (!was_run[p]) between.push_back(p);
    }
    if (between.empty()) continue;
    widest = width;
    next = between[between.size() / 2];
  }
  return next;
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
  std::vector<fit_detail::Candidate> all;
  const std::span<const remat::Frontier::Point> points = frontier.points();
  const auto add = [&](std::size_t point, Plan plan) {
    const double fastest = static_cast<double>(points.back().time);
    plan.step_s = static_cast<double>(points[point].time) * 1e-9;
    plan.time_overhead = static_cast<double>(points[point].time) / fastest - 1;
    all.push_back({point, std::move(plan)});
  };
  std::vector<bool> was_run(points.size());
  const auto run_point = [&](std::size_t point) {
    was_run[point] = true;
    const remat::Plan of_chain = frontier.plan(points[point].budget_bytes);
    auto tape = std::make_shared<TapePlan>(make_tape_plan(staged, of_chain));
    if (tape->segments.empty()) return;
    Plan plan = run_dry(std::move(tape));
    plan.description = remat::to_string(of_chain);
    add(point, std::move(plan));
  };
  add(points.size() - 1, run_dry(nullptr));
  keep_everything_ = all.back().plan;
  for (const std::size_t point : fit_detail::spread(points, fit_detail::candidate_count)) run_point(point);
  for (std::size_t i = 0; i < fit_detail::refinement_count; ++i) {
    const std::size_t point = fit_detail::next_point(fit_detail::best(all), was_run);
    if (point == points.size()) break;
    run_point(point);
  }
  for (fit_detail::Candidate& candidate : fit_detail::best(std::move(all))) plans_.push_back(std::move(candidate.plan));
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
