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

/// A point of the frontier that was run, and the load of that run.
struct Tried {
  std::size_t point;
  remat::Time time;
  std::size_t bytes;
};

/// Those that none is as fast as with as few bytes, by rising bytes.
std::vector<Tried> best(std::vector<Tried> all) {
  std::stable_sort(all.begin(), all.end(), [](const Tried& a, const Tried& b) {
    return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
  });
  std::vector<Tried> front;  // from the fastest on: a slower plan must need less
  for (const Tried& tried : all) {
    if (front.empty() || tried.bytes < front.back().bytes) front.push_back(tried);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

/// The point of the frontier to run next: in the middle of those between the two neighbours that lie farthest apart in
/// bytes and have one between them that was not run. The number of points when none lie farther apart than a fiftieth
/// of the range.
std::size_t next_point(const std::vector<Tried>& front, const std::vector<bool>& was_run) {
  std::size_t widest = (front.back().bytes - front.front().bytes) / 50;
  std::size_t next = was_run.size();
  for (std::size_t i = 0; i + 1 < front.size(); ++i) {
    const std::size_t width = front[i + 1].bytes - front[i].bytes;
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
    const memory::Stack stack = memory::make_resource(device_, profile_options(device_));
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
  const std::span<const remat::Frontier::Point> points = frontier.points();
  std::vector<fit_detail::Tried> tried;
  std::vector<bool> was_run(points.size());
  const auto add = [&](std::size_t point, Candidate candidate) {
    const double fastest = static_cast<double>(points.back().time);
    candidate.plan.step_s = static_cast<double>(points[point].time) * 1e-9;
    candidate.plan.time_overhead = static_cast<double>(points[point].time) / fastest - 1;
    tried.push_back({point, points[point].time, candidate.plan.lower_bound_bytes});
    candidates_.push_back(std::move(candidate));
  };
  const auto run_point = [&](std::size_t point) {
    was_run[point] = true;
    const remat::Plan of_chain = frontier.plan(points[point].budget_bytes);
    auto tape = std::make_shared<TapePlan>(make_tape_plan(staged, of_chain));
    if (tape->segments.empty()) return;
    Candidate candidate = run_dry(std::move(tape));
    candidate.plan.description = remat::to_string(of_chain);
    add(point, std::move(candidate));
  };
  add(points.size() - 1, run_dry(nullptr));
  keep_everything_ = candidates_.back().plan;
  for (const std::size_t point : fit_detail::spread(points, fit_detail::candidate_count)) run_point(point);
  for (std::size_t i = 0; i < fit_detail::refinement_count; ++i) {
    const std::size_t point = fit_detail::next_point(fit_detail::best(tried), was_run);
    if (point == points.size()) break;
    run_point(point);
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
