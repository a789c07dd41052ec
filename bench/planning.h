#pragma once
// What `thimble plan` does, as calls.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/bench/setup.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {

struct PlanOptions {
  Setup setup;
  std::size_t budget_bytes = 0;  ///< 0: the hardware's memory, where it has one; else none
  std::string hardware = "cpu";  ///< whose times are used
  bool finds_batch = false;      ///< the largest batch for the budget, in place of the setup's
  bool is_inference = false;     ///< a forward without a tape
};

/// A segment of the plan.
struct PlannedSegment {
  std::uint32_t first = 0, end = 0;  ///< nodes
  int depth = 0;                     ///< segments around it
  std::string path;                  ///< of its first node
  std::size_t kept_bytes = 0;        ///< of results and extras that it keeps while closed, its own nodes alone
  std::size_t dropped = 0;           ///< nodes whose result is dropped
};

struct PlanReport {
  nn::Plan plan;
  std::int64_t parameters = 0;
  std::int64_t batch = 0;
  std::size_t budget_bytes = 0;
  bool is_feasible = true;
  nn::BudgetError why_infeasible{"", 0, 0};  ///< the plan is then the smallest one
  std::size_t minimum_bytes = 0;             ///< of all plans
  std::size_t keep_everything_bytes = 0;
  std::string cost_model;
  std::vector<PlannedSegment> segments;
  double ms = 0;                         ///< of planning
  std::shared_ptr<nn::Planner> planner;  ///< that found the plan; null with --inference
};

/// Plans, all on dry devices: nothing is trained, and no memory beyond the planner's own is used. Throws ValueError
/// (names, sizes; --max-batch without a budget), BudgetError when --max-batch finds that not even one sample fits.
PlanReport make_plan(const PlanOptions& options);

/// The largest batch whose smallest plan is within the budget, found by halving between one that fits and one that does
/// not. Throws BudgetError when a batch of 1 does not.
std::int64_t largest_batch(const PlanOptions& options, std::size_t budget_bytes);

}  // namespace thimble::bench
