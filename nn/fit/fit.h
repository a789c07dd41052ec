#pragma once
// Fits a training step into a number of bytes.
//
//   nn::Planner planner(make_run, dry(cpu), nn::hardware("cpu"));
//   nn::Plan plan = planner.fit(budget);              // or BudgetError, which names the smallest budget
//   const memory::Stack stack = memory::make_resource(cpu, {.plans = plan.placement});
//   const ResourceScope scope(stack.top);
//   auto run = make_run(cpu);                         // model and optimizer
//   plan.apply(run->options(), cpu);
//   for (...) {
//     const PlacedArena::Step step(*stack.placed);      // around the whole step, as training_step requires
//     run->step();                                      // within the budget, with the same bits
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

/// Makes the tier for a device's offloaded tensors. Its workspace is part of a plan's peak.
using MakeTier = std::function<std::shared_ptr<memory::Tier>(memory::Device device)>;

/// Actions of plans that cost transfers or accuracy.
struct PlannerOptions {
  SpillPolicy spilling;  ///< whether plans offload tensors, which is exact, or pack them, which is lossy
  MakeTier make_tier;    ///< needed for offloading
};

/// Results of one operator, by name, that a plan packs to one dtype.
struct PackedResults {
  std::string name;
  DType dtype;
  std::size_t tensors = 0, bytes = 0;  ///< per recording, before packing
  std::size_t packed_bytes = 0;        ///< after packing, scales included
  friend bool operator==(const PackedResults&, const PackedResults&) = default;
};
/// Adds the graph's `value` to the counts.
void add_packed(std::vector<PackedResults>& list, const TapeGraph& graph, const TapePlan::Spill& spill,
                std::uint32_t value);

/// A schedule for the step, with its bytes.
struct Plan {
  /// Makes a run's steps follow the plan, and makes the tier if it offloads. Call it once model and optimizer exist,
  /// before the first step, under the run's resource. Throws PlanError if the plan was made for another machine
  /// (machine_text, threads included), whose workspaces have other sizes.
  void apply(StepOptions& options, memory::Device device) const;

  std::shared_ptr<const TapePlan> tape;          ///< null keeps everything
  std::vector<memory::StepPlacement> placement;  ///< addresses of the blocks of the first and of a steady step
  std::string description;                       ///< the schedule, stage by stage
  std::size_t peak_bytes = 0;                    ///< that the arena will commit, exactly
  std::size_t lower_bound_bytes = 0;             ///< no placement of the same step needs less
  double step_s = 0;                             ///< by the cost model
  double time_overhead = 0;                      ///< over keeping everything: 0.1 is 10 % more
  /// Lower bound of the time, by the cost model, of all plans of the step, alike for all micro-batches, within the
  /// budget of fit(), or else within peak_bytes (memory/remat/select.h). 0 if unknown, as for a plan from a file.
  double least_step_s = 0;
  /// Upper bound of the plan's excess over the fastest possible: 0.01 is 1 %.
  double time_gap() const { return least_step_s > 0 ? step_s / least_step_s - 1 : 0; }
  memory::CategoryBytes peak_by_category{};
  MakeTier make_tier;                            ///< null if the plan does not offload
  std::size_t offloaded_bytes = 0;               ///< of saved tensors, per recording
  std::size_t packed_bytes = 0;                  ///< of packed saved tensors before packing, per recording
  std::vector<PackedResults> packed = {};        ///< the packed tensors by operator and dtype
  std::size_t tier_bytes = 0;                    ///< in the run's tiers, exactly (MemoryProfile)
  std::shared_ptr<const PlanKey> key = nullptr;  ///< of its run; null if unknown
};

/// Counts the tensors that a plan's tape offloads and packs, per recording of `graph`. Both have the same operators.
void count_spills(Plan& plan, const TapeGraph& graph);

/// Adapts a plan to a step with other block sizes, such as another rank's: it keeps, recomputes and spills the same
/// tensors, places the blocks again, and takes all figures except times from `make`'s run. Throws any error of the run.
Plan place_anew(const Plan& plan, const MakeRun& make, memory::Device device);

/// Returns an existing plan for `make`'s run: nn::plan_file(path) reads one (nn/fit/plan_file.h).
using PlanSource = std::function<Plan(const MakeRun& make, memory::Device device, const MakeTier& make_tier)>;

/// Approximate limit in milliseconds of processor time for refusing a budget: finding the smallest plan, then changes
/// that would fit (nn/fit/levers.h).
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

/// All plans of one step on one device. It runs and places them at first use, so threads must not share a planner.
/// nn/fit/plan_search.h describes the search.
class Planner {
 public:
  /// Records the step of `make`'s run on the dry twin of `device` and finds its plans. Without `options` every plan is
  /// exact and costs only memory and time. Allowing more never yields a worse plan: one without offloading or packing
  /// is taken if it is as good. Throws any error of the run, ValueError for the costs of another program, and PlanError
  /// for offloading without a tier.
  Planner(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options = {});
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// The fastest examined plan within the budget; its peak is exact. The search examines some fifty points of the
  /// frontier, then bisects between two. The frontier holds the fastest plans of the chain's options by the cost model;
  /// a faster plan may exist outside both. Throws BudgetError.
  const Plan& fit(std::size_t budget_bytes);

  /// Plans over the whole range, with falling times and rising peaks; none is dominated by another.
  std::vector<Plan> plans();
  /// The fastest plan found in the smallest budget for which fit() has a plan, determined at the frontier's lower end.
  const Plan& smallest();
  /// A lower bound of smallest()'s peak, found without placement: no smaller budget has a plan.
  std::size_t least_load();
  /// The step that keeps everything, the reference for overheads. It ignores segments that the program names
  /// (autograd/checkpoint.h).
  const Plan& keep_everything();
  /// Its time by the cost model, found without placement.
  double kept_step_s() const noexcept;

  std::int64_t parameters() const noexcept;
  const TapeGraph& graph() const noexcept;

 private:
  std::unique_ptr<PlanSearch> search_;
};

}  // namespace thimble::nn
