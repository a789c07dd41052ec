#pragma once
// fit: a training step in a number of bytes.
//
//   nn::Planner planner(make_run, dry(cpu), nn::hardware("cpu"));
//   nn::Plan plan = planner.fit(budget);              // or BudgetError, which says what would fit
//   const memory::Stack stack = memory::make_resource(cpu, {.plans = plan.placement});
//   const ResourceScope scope(stack.top);
//   auto run = make_run(cpu);                         // model and optimizer
//   plan.apply(run->options(), cpu);
//   for (...) {
//     const Placed::Step step(*stack.placed);         // from the step's first byte to its last: training_step insists
//     run->step();                                    // inside of the budget, with the same bits
//   }
//
// The step is recorded once on a dry device, cut into a chain (nn/fit/stages.h), and the chain is solved for all
// budgets at once (memory/remat/frontier.h). A point of that frontier is run dry, its allocations are placed
// (memory/placement/placement.h), and it is run dry again in that placement: what the arena commits then is a plan's
// peak, and nothing of it is estimated. Points are run when they are first looked at, and placed where their dry run
// leaves in doubt whether they keep a budget. A budget's plan is found by halving, first among points spread over the
// whole frontier, then between two neighbours of these. More budget never gives a slower plan: all budgets halve the
// same stretches at the same points, and what fits the smaller one fits the larger, so that where two part, the larger
// goes on among faster plans.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/remat/frontier.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/plan_key.h>
#include <thimble/nn/fit/stages.h>
#include <thimble/nn/fit/storing.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

/// Makes the tier that tensors of a device are offloaded to. Its workspace is part of a plan's peak.
using MakeTier = std::function<std::shared_ptr<Tier>(Device device)>;

/// What plans may do at a cost in transfers or accuracy.
struct PlannerOptions {
  Storing storing;     ///< whether tensors are offloaded, exactly, or packed, which is lossy
  MakeTier make_tier;  ///< needed where they are offloaded
};

/// Results of operators of one name that a plan packs to one dtype.
struct PackedResults {
  std::string name;
  DType dtype;
  std::size_t tensors = 0, bytes = 0;  ///< per recording, before they are packed
  std::size_t packed_bytes = 0;        ///< and after, scales included
  friend bool operator==(const PackedResults&, const PackedResults&) = default;
};
/// Counts one more tensor, the graph's `value`.
void add_packed(std::vector<PackedResults>& list, const TapeGraph& graph, const TapePlan::Store& store,
                std::uint32_t value);

/// A way of running the step, with what it needs.
struct Plan {
  /// Has the steps of a run follow it. Makes the tier where it offloads: to be called once model and optimizer are
  /// there, before the first step, under the resource of the run. Throws PlanError where it was made for another
  /// machine (machine_text), whose workspaces have other sizes: other threads among it.
  void apply(StepOptions& options, Device device) const;

  std::shared_ptr<const TapePlan> tape;  ///< null: everything is kept
  std::vector<StepPlan> placement;       ///< where the blocks of the first and of a steady step go
  std::string description;               ///< the chain's schedule, stage by stage
  std::size_t peak_bytes = 0;            ///< that the arena will commit, exactly
  std::size_t lower_bound_bytes = 0;     ///< the load: no placement of the same step needs less
  double step_s = 0;                     ///< by the cost model
  double time_overhead = 0;              ///< over keeping everything: 0.1 is a tenth more
  CategoryBytes peak_by_category{};
  MakeTier make_tier;                            ///< null where the plan does not offload
  std::size_t offloaded_bytes = 0;               ///< of saved tensors, per recording
  std::size_t packed_bytes = 0;                  ///< the same, before they are packed
  std::vector<PackedResults> packed = {};        ///< what these are
  std::size_t tier_bytes = 0;                    ///< that the run's tiers occupy, exactly (MemoryProfile)
  std::shared_ptr<const PlanKey> key = nullptr;  ///< what it belongs to; null: that is not known
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

/// All plans of one step on one device. They are run and placed when they are first looked at, so one planner is not
/// for several threads at once.
class Planner {
 public:
  /// Records the step of `make`'s run on the dry twin of `device` and finds the plans. Throws what the run throws, and
  /// ValueError for the costs of another program.
  /// Without `options` every plan is exact and needs nothing but memory and time. Throws PlanError when they offload
  /// without a tier.
  /// Allowing more never yields a worse plan: one that stores nothing, or packs nothing, is taken where it is as good.
  Planner(MakeRun make, Device device, const CostModel& costs, PlannerOptions options = {});

  /// The fastest plan within the budget of those that the search looks at: some fifty points of the frontier, then
  /// halves of the stretch between two. The frontier's plans are the fastest of the chain's options by the cost model;
  /// a faster one may exist outside of both. Its peak is exact. Throws BudgetError.
  const Plan& fit(std::size_t budget_bytes);

  /// Plans with falling times and rising peaks, none of them worse than another in both: a picture of the whole range.
  std::vector<Plan> plans();
  /// The smallest budget for which fit() has a plan, and that plan: the least of the points at the frontier's lower
  /// end.
  const Plan& smallest();
  /// The step without a plan, in an arena without placement: what overheads are counted from.
  const Plan& keep_everything() const noexcept { return keep_everything_; }

  std::int64_t parameters() const noexcept { return parameters_; }
  const TapeGraph& graph() const noexcept { return graph_; }

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  struct Candidate {
    Plan plan;                           // its peak is that of a dynamic arena until it is placed
    std::vector<Trace::Event> events;    // of a run without placement, until it is placed
    std::vector<std::size_t> step_ends;  // in them
    std::size_t setup_end = 0;
    bool is_placed = false;
  };
  MakeRun run_with(const Plan& plan) const;
  Plan plan_of(std::shared_ptr<const TapePlan> tape) const;
  Candidate run_dry(std::shared_ptr<const TapePlan> tape) const;
  Candidate& run(std::size_t point);
  const Plan& place(Candidate& candidate);
  std::size_t committed(std::size_t bytes) const noexcept;
  bool is_within(std::size_t point, std::size_t budget_bytes);
  const Plan* find(std::size_t budget_bytes);
  std::size_t find_point(std::size_t budget_bytes);
  std::size_t smallest_point();
  double step_seconds(std::size_t point) const;

  MakeRun make_;
  Device device_;
  PlannerOptions options_;
  std::unique_ptr<Planner> simpler_;  // with fewer options; null: this one has none
  TapeGraph graph_;
  std::shared_ptr<const PlanKey> key_;
  StagedGraph staged_;
  std::unique_ptr<const remat::Frontier> frontier_;
  std::int64_t passes_ = 1;    // forward and backward of the recording, per step
  double accumulating_s_ = 0;  // of adding their gradients up
  Plan keep_everything_;
  std::size_t granule_ = 1;                      // of the arena
  std::map<std::size_t, Candidate> candidates_;  // by point of the frontier: those further on are faster
  std::vector<std::size_t> list_;                // points spread over the frontier, rising
  std::vector<std::size_t> low_;                 // points of which one needs least, rising
  std::size_t smallest_ = none;                  // of them; none: not known yet
  std::int64_t parameters_ = 0;
};

}  // namespace thimble::nn
