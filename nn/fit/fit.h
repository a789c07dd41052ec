#pragma once
// fit: a training step in a number of bytes.
//
//   nn::Planner planner(make_run, dry(cpu), nn::hardware("cpu"));
//   nn::Plan plan = planner.fit(budget);              // or BudgetError, which says what would fit
//   memory::make_resource(cpu, {.plans = plan.placement});
//   run->options().recording.plan = plan.tape;        // train inside of it, with the same bits
//
// The step is recorded once on a dry device, cut into a chain (nn/fit/stages.h), and the chain is solved for all
// budgets at once (memory/remat/frontier.h). Points of that frontier, close together over its whole range, are then run
// dry, their allocations are placed (memory/placement.h), and they are run dry again in that placement: what the arena
// commits then is a plan's peak, and nothing is estimated. More budget never gives a slower plan, because all budgets
// choose from one list.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/stages.h>
#include <thimble/nn/profile.h>

namespace thimble::nn {

/// A way of running the step, with what it needs.
struct Plan {
  std::shared_ptr<const TapePlan> tape;  ///< null: everything is kept
  std::vector<StepPlan> placement;       ///< where the blocks of the first and of a steady step go (memory/placed.h)
  std::string description;               ///< the chain's schedule, stage by stage
  std::size_t peak_bytes = 0;            ///< that the arena will commit, exactly
  std::size_t lower_bound_bytes = 0;     ///< the load: no placement of the same step needs less
  double step_s = 0;                     ///< by the cost model
  double time_overhead = 0;              ///< over keeping everything: 0.1 is a tenth more
  CategoryBytes peak_by_category{};
};

/// No plan fits the budget.
class BudgetError : public PlanError {
 public:
  BudgetError(const std::string& message, std::size_t budget_bytes, std::size_t minimum_bytes)
      : PlanError(message), budget_bytes_(budget_bytes), minimum_bytes_(minimum_bytes) {}
  std::size_t budget_bytes() const noexcept { return budget_bytes_; }
  /// The smallest budget for which fit() has a plan.
  std::size_t minimum_bytes() const noexcept { return minimum_bytes_; }

 private:
  std::size_t budget_bytes_, minimum_bytes_;
};

/// All plans of one step on one device. They are placed when they are first looked at, so one planner is not for
/// several threads at once.
class Planner {
 public:
  /// Records the step of `make`'s run on the dry twin of `device` and finds the plans. Throws what the run throws.
  Planner(MakeRun make, Device device, const Hardware& hardware);

  /// The fastest plan whose peak is within the budget. Throws BudgetError.
  const Plan& fit(std::size_t budget_bytes);

  /// Plans with falling times and rising peaks, none of them worse than another in both. Places them all.
  std::vector<Plan> plans();
  /// The smallest budget for which fit() has a plan, and that plan.
  const Plan& smallest();
  /// The step without a plan, in an arena without placement: what overheads are counted from.
  const Plan& keep_everything() const noexcept { return keep_everything_; }

  std::int64_t parameters() const noexcept { return parameters_; }
  const TapeGraph& graph() const noexcept { return graph_; }

 private:
  struct Candidate {
    Plan plan;                           // its peak is that of a dynamic arena until it is placed
    std::vector<Trace::Event> events;    // of a run without placement, until it is placed
    std::vector<std::size_t> step_ends;  // in them
    std::size_t setup_end = 0;
    bool is_placed = false;
  };
  MakeRun run_with(std::shared_ptr<const TapePlan> tape) const;
  Candidate run_dry(std::shared_ptr<const TapePlan> tape) const;
  const Plan& place(Candidate& candidate);

  MakeRun make_;
  Device device_;
  TapeGraph graph_;
  Plan keep_everything_;
  std::vector<Candidate> candidates_;  // by rising time
  std::int64_t parameters_ = 0;
};

}  // namespace thimble::nn
