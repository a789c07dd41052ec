#pragma once
// Plans the steps of a program within a budget: a user's program (nn/trainer/trainer.h) or a named model
// (models/training/training.h).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/policies/trace.h>
#include <thimble/memory/process/outside.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/trainer/trainer_core.h>

namespace thimble::nn {

/// The example step of a plan.
struct ExampleStep {
  std::int64_t step = 0;
  std::vector<bool> is_frozen = {};  ///< each parameter of the optimizers, in order; defaults to the program's choice
};

/// Finds the plan of a step.
struct StepKey {
  std::string shapes, values;  // of BatchOutline
  std::vector<bool> is_frozen;
};

/// A dry step without a plan. Steps with equal records run the same operators and request the same blocks.
struct StepRecord {
  std::vector<memory::Trace::Event> events;
  std::vector<const OpType*> operators;
  bool operator==(const StepRecord&) const = default;
};

/// The plan of the steps of one key.
struct ShapePlan {
  std::string shapes;                // of BatchOutline
  std::vector<std::string> values;   // of BatchOutline, whose steps are equal: the example's, and later ones
  std::optional<StepRecord> record;  // of the example; recorded when a batch with other values comes
  std::vector<bool> is_frozen;       // of ExampleStep, never empty
  ExampleStep example;               // a step with this key
  std::string key;                   // shapes, values and frozen parameters, as text
  bool is_of(const StepKey& other) const {
    return shapes == other.shapes && is_frozen == other.is_frozen &&
           std::find(values.begin(), values.end(), other.values) != values.end();
  }
  /// Bounds the list for programs whose batches all have different values.
  void forget_values() {
    constexpr std::size_t max_values = 1024;
    if (values.size() > max_values) values.erase(values.begin() + 1, values.end() - max_values / 2);
  }
  std::vector<std::shared_ptr<Planner>> planners;  // of each part; empty without a budget
  std::vector<Plan> parts;                         // of each part; steps follow their tape plans
  std::vector<memory::StepPlacement> placement;    // of the first and of a steady step, with all parts
  std::size_t first_plan = 0;                      // index of its first entry in RunPlans::placements()
  bool is_given = false;                           // the plan comes from TrainerOptions::plan
  /// If the program is planned as a whole, its only part's plan has the placement.
  const std::vector<memory::StepPlacement>& placed() const noexcept {
    return placement.empty() && !parts.empty() ? parts.front().placement : placement;
  }
};

/// Elements have stable addresses, because runs point to them.
using ShapePlans = std::vector<std::unique_ptr<ShapePlan>>;

/// Makes the runs that plans are made for. They read the number of micro-batches from the options of RunPlans.
class PlannedProgram {
 public:
  virtual ~PlannedProgram() = default;
  virtual std::size_t part_count() const { return 1; }
  virtual bool cuts_into(std::int64_t micro_batches) const = 0;
  /// Runs of one part that keep everything, for its planner. Ranks that share a plan return the steps of the first of
  /// them.
  virtual MakeRun part_run(const ExampleStep& step, std::size_t part) const = 0;
  /// Whether part_run() is the whole program with its evaluations, so that its plan needs no other placement.
  virtual bool is_whole_run() const { return false; }
  /// Runs these steps, with all parts, under the plans of `shapes`.
  virtual MakeRun planned_run(std::vector<ExampleStep> steps, const ShapePlans& shapes) const = 0;
  /// Converts a plan for part_run's rank into the plan for this rank.
  virtual Plan for_this_rank(Plan plan, [[maybe_unused]] const ExampleStep& step, [[maybe_unused]] std::size_t part) {
    return plan;
  }
  /// The bytes that each rank needs when this rank needs `own_bytes`; empty for one rank.
  virtual std::vector<std::size_t> rank_bytes([[maybe_unused]] std::size_t own_bytes) { return {}; }
  /// Determines the process's bytes outside the arena, for steps that record `nodes` nodes.
  virtual memory::OutsideFacts outside_facts(std::size_t nodes) const = 0;
  /// Throws BudgetError; the smallest plans need `least_bytes`.
  [[noreturn]] virtual void refuse(std::size_t least_bytes) = 0;
};

/// Finds the plans of all keys of a program. Parts are planned one by one. A step with all parts and all keys' plans
/// may need a little more; all parts are then planned again for that much less.
class RunPlans {
 public:
  /// The arguments must outlive it. `options` holds the budgets; choose_micro_batches() stores its result there.
  RunPlans(PlannedProgram& program, TrainerOptions& options, const CostModel& costs);

  /// Picks the number with which the example steps are fastest within the budget, or need least if none fits.
  void choose_micro_batches(const std::vector<ExampleStep>& steps);
  /// Adds a key without a plan, and makes its planners if there is a budget.
  ShapePlan& add(std::unique_ptr<ShapePlan> shape);
  /// Plans all keys within the budgets. A BudgetError removes the latest key and leaves the others as they were.
  void fit();
  /// Called once an arena exists: its capacity is the budget.
  void hold_budget() noexcept { is_held_ = true; }
  /// Frees the planners; call it when all planning is done.
  void release_planners();

  const ShapePlans& shapes() const noexcept { return shapes_; }
  std::vector<memory::StepPlacement> placements() const;
  /// Of the arena; 0 means no budget.
  std::size_t budget_bytes() const noexcept { return budget_; }
  TrainerPlan& plan() noexcept { return plan_; }
  const TrainerPlan& plan() const noexcept { return plan_; }
  /// Of the latest placement.
  const MemoryProfile& profile() const noexcept { return profile_; }
  /// Nodes that a step records; with several micro-batches, one of them.
  std::size_t node_count() const noexcept { return nodes_ > 0 ? nodes_ : profile_.nodes; }
  /// For a process that runs the plans.
  memory::OutsideFacts outside_facts() const;
  /// Seconds of the step that keeps everything, for the latest key's last part, by the cost model.
  double kept_step_s() const noexcept { return kept_step_s_; }
  /// Processor time at which planning of the latest key began.
  double begin_ms() const noexcept { return begin_ms_; }

 private:
  bool is_planned() const noexcept {
    return options_.budget_bytes > 0 || options_.process_budget_bytes > 0 || options_.plan;
  }
  std::vector<std::shared_ptr<Planner>> planners_of(const ExampleStep& step) const;
  void set_planners(ShapePlan& shape, std::vector<std::shared_ptr<Planner>> planners);
  bool fit_parts(std::size_t target_bytes);
  void fit_smallest();
  std::size_t place();
  void fit_arena();
  void fit_budgets();
  memory::OutsideBytes outside();

  PlannedProgram& program_;
  TrainerOptions& options_;
  const CostModel& costs_;
  std::size_t budget_;
  ShapePlans shapes_;
  std::vector<std::shared_ptr<Planner>> chosen_;  // for the chosen number of micro-batches, step by step
  TrainerPlan plan_;
  MemoryProfile profile_;
  std::size_t nodes_ = 0;
  double kept_step_s_ = 0, begin_ms_ = 0;
  bool is_held_ = false;
  bool is_dynamic_ = false;  // there is no budget, and a placement would need more than blocks on demand
};

}  // namespace thimble::nn
