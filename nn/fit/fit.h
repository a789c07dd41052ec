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
//     const PlacedArena::Step step(*stack.placed);      // around the whole step: training_step insists
//     run->step();                                      // inside of the budget, with the same bits
//   }

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/plan_key.h>
#include <thimble/nn/fit/spilling.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

class PlanSearch;

/// Makes the tier that tensors of a device are offloaded to. Its workspace is part of a plan's peak.
using MakeTier = std::function<std::shared_ptr<Tier>(memory::Device device)>;

/// Actions of plans that cost transfers or accuracy.
struct PlannerOptions {
  SpillPolicy spilling;  ///< whether tensors are offloaded, exactly, or packed, which is lossy
  MakeTier make_tier;    ///< needed if they are offloaded
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
void add_packed(std::vector<PackedResults>& list, const TapeGraph& graph, const TapePlan::Spill& spill,
                std::uint32_t value);

/// A way of running the step, with its bytes.
struct Plan {
  /// Makes the steps of a run follow it. Makes the tier if it offloads: call it once model and optimizer exist, before
  /// the first step, under the resource of the run. Throws PlanError if it was made for another machine (machine_text,
  /// threads included), whose workspaces have other sizes.
  void apply(StepOptions& options, memory::Device device) const;

  std::shared_ptr<const TapePlan> tape;  ///< null: everything is kept
  std::vector<StepPlacement> placement;  ///< where the blocks of the first and of a steady step go
  std::string description;               ///< the chain's schedule, stage by stage
  std::size_t peak_bytes = 0;            ///< that the arena will commit, exactly
  std::size_t lower_bound_bytes = 0;     ///< the load: no placement of the same step needs less
  double step_s = 0;                     ///< by the cost model
  double time_overhead = 0;              ///< over keeping everything: 0.1 is a tenth more
  /// No plan of the same step within the budget of fit(), else in peak_bytes, takes less by the cost model
  /// (memory/remat/select.h). 0: not known, as for a plan from a file.
  double least_step_s = 0;
  /// How much longer the plan takes than that at most: 0.01 is a hundredth.
  double time_gap() const { return least_step_s > 0 ? step_s / least_step_s - 1 : 0; }
  CategoryBytes peak_by_category{};
  MakeTier make_tier;                            ///< null if the plan does not offload
  std::size_t offloaded_bytes = 0;               ///< of saved tensors, per recording
  std::size_t packed_bytes = 0;                  ///< the same, before they are packed
  std::vector<PackedResults> packed = {};        ///< what these are
  std::size_t tier_bytes = 0;                    ///< that the run's tiers occupy, exactly (MemoryProfile)
  std::shared_ptr<const PlanKey> key = nullptr;  ///< of its run; null: not known
};

/// Counts what a plan's tape offloads and packs per recording of `graph`, whose operators are the tape's.
void count_spills(Plan& plan, const TapeGraph& graph);

/// This plan for a step whose blocks have other sizes, such as another rank's: it keeps, recomputes and spills the same
/// tensors, places the blocks again, and takes all figures except times from `make`'s run. Throws what the run throws.
Plan place_anew(const Plan& plan, const MakeRun& make, memory::Device device);

/// An existing plan, for the run that `make` makes: nn::plan_file(path) reads one (nn/fit/plan_file.h).
using PlanSource = std::function<Plan(const MakeRun& make, memory::Device device, const MakeTier& make_tier)>;

/// Approximate limit in milliseconds of processor time for refusing a budget: first the smallest plan, then changes
/// that make the budget enough (nn/fit/levers.h).
inline constexpr double default_refusal_ms = 1800;

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

/// All plans of one step on one device. They are run and placed at first use, so one planner is not for several threads
/// at once. nn/fit/plan_search.h describes the search.
class Planner {
 public:
  /// Records the step of `make`'s run on the dry twin of `device` and finds the plans. Throws what the run throws, and
  /// ValueError for the costs of another program. Without `options` every plan is exact and needs only memory and time.
  /// Throws PlanError if they offload without a tier. Allowing more never yields a worse plan: one that spills nothing,
  /// or packs nothing, is taken if it is as good.
  Planner(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options = {});
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// The fastest examined plan within the budget. The search examines some fifty points of the frontier, then bisects
  /// between two. The frontier's plans are the fastest of the chain's options by the cost model; a faster one
  /// may exist outside of both. Its peak is exact. Throws BudgetError.
  const Plan& fit(std::size_t budget_bytes);

  /// Plans with falling times and rising peaks over the whole range, none worse than another in both.
  std::vector<Plan> plans();
  /// The smallest budget for which fit() has a plan, and the fastest plan found in it: the smallest budget is that of
  /// the points at the frontier's lower end.
  const Plan& smallest();
  /// A lower bound of smallest()'s peak, without placing anything: no budget under it has a plan.
  std::size_t least_load();
  /// The step that keeps everything, from which overheads are counted. Segments that the program names
  /// (autograd/checkpoint.h) are ignored.
  const Plan& keep_everything();
  /// Of that step, by the cost model: without placing anything.
  double kept_step_s() const noexcept;

  std::int64_t parameters() const noexcept;
  const TapeGraph& graph() const noexcept;

 private:
  std::unique_ptr<PlanSearch> search_;
};

}  // namespace thimble::nn
