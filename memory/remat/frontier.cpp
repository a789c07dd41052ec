#include <algorithm>

#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/interval_classes.h>
#include <thimble/memory/remat/interval_table.h>

namespace thimble::remat {

namespace frontier_detail {

void require_size(const Chain& chain) {
  validate(chain);
  if (chain.size() > 2048) {
    throw PlanError("remat frontier: the chain has " + std::to_string(chain.size()) +
                    " stages, at most 2048 are solved: join stages");
  }
}

/// Breakpoints per interval such that about `work` are visited: each split walks along two parts and the envelope.
std::size_t breakpoint_limit(const IntervalClasses& classes, std::int64_t work, bool has_few_splits) {
  return static_cast<std::size_t>(std::max<std::int64_t>(8, work / (4 * classes.split_count(has_few_splits))));
}

Bytes smallest(const Chain& chain, const IntervalClasses& classes) {
  const IntervalTable table(chain, classes, {1, false, false, 0});
  return table.whole().front().bytes + chain.input_bytes;
}

[[noreturn]] void refuse(Bytes budget, Bytes least) {
  throw InfeasibleBudget("remat solve: no persistent schedule fits a budget of " + std::to_string(budget) +
                             " bytes, the smallest that one fits is " + std::to_string(least),
                         budget, least);
}

}  // namespace frontier_detail

Frontier::~Frontier() = default;
Frontier::Frontier(Frontier&&) noexcept = default;
Frontier& Frontier::operator=(Frontier&&) noexcept = default;

Frontier::Frontier(Chain chain, const SolveLimits& limits) : chain_(std::make_unique<Chain>(std::move(chain))) {
  frontier_detail::require_size(*chain_);
  if (limits.work < 0) {
    throw ValueError("remat frontier: work is " + std::to_string(limits.work) + ", must be >= 0");
  }
  classes_ = std::make_unique<IntervalClasses>(*chain_);
  IntervalTable::Thinning thinning;
  thinning.work = limits.work;
  table_ = std::make_unique<IntervalTable>(*chain_, *classes_, thinning);
  is_exact_ = !table_->is_abandoned();
  if (!is_exact_) {
    const std::int64_t half = std::max<std::int64_t>(limits.work / 2, 1);
    thinning = {frontier_detail::breakpoint_limit(*classes_, half, true), false, true, 0};
    table_ = std::make_unique<IntervalTable>(*chain_, *classes_, thinning);
    thinning = {frontier_detail::breakpoint_limit(*classes_, half, false), true, false, 0};
    bound_ = std::make_unique<IntervalTable>(*chain_, *classes_, thinning);
  }
  for (const IntervalTable::Breakpoint& point : table_->whole()) {
    const Bytes budget = point.bytes + chain_->input_bytes;
    points_.push_back({budget, point.time, point.time});
  }
  for (Point& point : points_) point.lower_bound = lower_bound(point.budget_bytes);
}

const Frontier::Point& Frontier::at(Bytes budget_bytes) const {
  const auto after = std::upper_bound(points_.begin(), points_.end(), budget_bytes,
                                      [](Bytes value, const Point& point) { return value < point.budget_bytes; });
  if (after == points_.begin()) frontier_detail::refuse(budget_bytes, minimum_budget());
  return *(after - 1);
}

Time Frontier::lower_bound(Bytes budget_bytes) const {
  const Time time = at(budget_bytes).time;
  if (is_exact_) return time;
  const auto points = bound_->whole();
  const auto after = std::upper_bound(points.begin(), points.end(), budget_bytes - chain_->input_bytes,
                                      [](Bytes value, const auto& point) { return value < point.bytes; });
  return std::min(time, (after - 1)->time);
}

ScheduleTree Frontier::plan(Bytes budget_bytes) const {
  return table_->plan(at(budget_bytes).budget_bytes - chain_->input_bytes);
}

Frontier::Size Frontier::size() const noexcept {
  return {classes_->representatives().size(), table_->breakpoints(), table_->largest()};
}

Solution solve(const Chain& chain, Bytes budget_bytes, const SolveLimits& limits) {
  const Frontier solved(chain, limits);
  const Frontier::Point& point = solved.at(budget_bytes);
  Solution solution;
  solution.plan = solved.plan(budget_bytes);
  solution.cost = simulate(chain, solution.plan);
  solution.lower_bound = solved.lower_bound(budget_bytes);
  if (solution.cost.peak_bytes > budget_bytes || solution.cost.time > point.time) {
    throw PlanError("remat solve: the plan takes " + std::to_string(solution.cost.peak_bytes) + " bytes and time " +
                    std::to_string(solution.cost.time) + " where the solver has " + std::to_string(budget_bytes) +
                    " and " + std::to_string(point.time));
  }
  return solution;
}

Frontier frontier(const Chain& chain, const SolveLimits& limits) { return Frontier(chain, limits); }

Bytes minimum_budget(const Chain& chain) {
  frontier_detail::require_size(chain);
  return frontier_detail::smallest(chain, IntervalClasses(chain));
}

}  // namespace thimble::remat
