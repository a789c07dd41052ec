#pragma once
// The exact dynamic program for heterogeneous chains with options: least time for every budget at once.
//
// Policy
// - Bytes are never rounded. For every interval of stages the table holds the least time as a step function of the
//   bytes at hand: its breakpoints (bytes, time).
// - The recursion follows Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019 ("Optimal checkpointing for
//   heterogeneous chains"), persistent case, with several options per stage, some of which record several stages at
//   once. For stages a..b with m bytes beyond the bytes held when their visit begins, T(a, b, m) is the least of
//     drop a..j-1:   sum f[a..j-1] + T(j, b, m - a_j) + T(a, j - 1, m - d_j + d_{b+1} - parameter gradients of j..b)
//     record a..e-1 as o, e = a + span_o: f_o + r_o + b_o + T(e, b, m - kept_o - a_e)
//   each where m covers the largest need of its forwards and its backward.
// - Intervals that are equal in all their numbers are solved once: a network of equal blocks costs n intervals, not
//   n^2.
// - If a forecast expects more breakpoints than the work limit admits, some of them and some splits are left out.
//   The plan still needs no more time and bytes than its point says. A second table, with all splits and thinned the
//   other way, bounds the loss. The smallest feasible budget stays exact.
// - One table serves all budgets, so more budget never gives a slower plan.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/schedule.h>

namespace thimble::remat {

class IntervalClasses;
class IntervalTable;

struct SolveLimits {
  /// Approximate number of breakpoints visited while solving: a count, not a time, so that results do not depend on the
  /// machine. The default takes tens of milliseconds. 0 sets no limit and is always exact, but takes seconds on 100
  /// stages that all differ. Beyond 300 such stages the n^3 / 6 splits exceed any limit: join stages.
  std::int64_t work = 14'000'000;
};

/// Least time against budget, for one chain.
class Frontier {
 public:
  struct Point {
    Bytes budget_bytes = 0;  ///< smallest budget at which `time` is reached; the chain's input included
    Time time = 0;           ///< forward, recompute and backward of the whole schedule
    Time lower_bound = 0;    ///< no persistent schedule within this budget is faster; equal to time when proven optimal

    friend bool operator==(const Point&, const Point&) = default;
  };

  /// Solves the chain. Throws ValueError as validate(chain) does and for negative work, PlanError above 2048 stages.
  explicit Frontier(Chain chain, const SolveLimits& limits = {});
  ~Frontier();
  Frontier(Frontier&&) noexcept;
  Frontier& operator=(Frontier&&) noexcept;

  /// Budgets rise and times fall, both strictly. Never empty.
  std::span<const Point> points() const noexcept { return points_; }

  /// Every point is proven optimal and no point is missing.
  bool is_exact() const noexcept { return is_exact_; }

  /// The smallest budget that any persistent schedule fits. Exact under any limits.
  Bytes minimum_budget() const noexcept { return points_.front().budget_bytes; }

  /// The last point within a budget. Its lower bound holds for the point's budget; see lower_bound() for others. Throws
  /// InfeasibleBudget below minimum_budget().
  const Point& at(Bytes budget_bytes) const;

  /// No persistent schedule within the budget takes less time. Throws InfeasibleBudget as at() does.
  Time lower_bound(Bytes budget_bytes) const;

  /// A plan of at(budget_bytes).time whose peak is within the budget. Throws InfeasibleBudget as at() does.
  ScheduleTree plan(Bytes budget_bytes) const;

  const Chain& chain() const noexcept { return *chain_; }

  /// Number of distinct intervals, each solved once.
  std::size_t interval_count() const noexcept;

 private:
  std::unique_ptr<const Chain> chain_;  // the tables point to it
  std::unique_ptr<const IntervalClasses> classes_;
  std::unique_ptr<const IntervalTable> table_;
  std::unique_ptr<const IntervalTable> bound_;  // null when the table is exact
  std::vector<Point> points_;
  bool is_exact_ = true;
};

}  // namespace thimble::remat
