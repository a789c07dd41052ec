#include <algorithm>

#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/remat/interval_classes.h>
#include <thimble/memory/remat/interval_table.h>

namespace thimble::remat {

namespace {

/// Breakpoints per interval at which solving visits about `work`: each split walks along two parts and the envelope.
std::size_t breakpoint_limit(const IntervalClasses& classes, std::int64_t work, bool has_few_splits) {
  return static_cast<std::size_t>(std::max<std::int64_t>(8, work / (4 * classes.split_count(has_few_splits))));
}

[[noreturn]] void refuse(Bytes budget, Bytes least) {
  throw InfeasibleBudget("remat solve: no persistent schedule fits a budget of " + std::to_string(budget) +
                             " bytes, the smallest that one fits is " + std::to_string(least),
                         budget, least);
}

}  // namespace

Frontier::~Frontier() = default;
Frontier::Frontier(Frontier&&) noexcept = default;
Frontier& Frontier::operator=(Frontier&&) noexcept = default;

Frontier::Frontier(Chain chain, const SolveLimits& limits) : chain_(std::make_unique<Chain>(std::move(chain))) {
  validate(*chain_);
  if (chain_->size() > 2048) {
    throw PlanError("remat frontier: the chain has " + std::to_string(chain_->size()) +
                    " stages, at most 2048 are solved: join stages");
  }
  if (limits.work < 0) throw ValueError("remat frontier: work is " + std::to_string(limits.work) + ", must be >= 0");
  classes_ = std::make_unique<IntervalClasses>(*chain_);
  IntervalTable::Thinning thinning;
  thinning.work = limits.work;
  table_ = std::make_unique<IntervalTable>(*chain_, *classes_, thinning);
  is_exact_ = !table_->is_abandoned();
  if (!is_exact_) {
    const std::int64_t half = std::max<std::int64_t>(limits.work / 2, 1);
    thinning = {breakpoint_limit(*classes_, half, true), false, true, 0};
    table_ = std::make_unique<IntervalTable>(*chain_, *classes_, thinning);
    thinning = {breakpoint_limit(*classes_, half, false), true, false, 0};
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
  if (after == points_.begin()) refuse(budget_bytes, minimum_budget());
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

std::size_t Frontier::interval_count() const noexcept { return classes_->representatives().size(); }

}  // namespace thimble::remat
