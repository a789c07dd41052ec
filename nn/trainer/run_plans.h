#pragma once
// The plans of a program's steps in a number of bytes: of a user's program (nn/trainer/trainer.h) and of a named model
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

/// The shape of steps for a plan, by one of them.
struct ExampleStep {
  std::int64_t step = 0;
  std::vector<bool> is_frozen = {};  ///< each parameter of the optimizers, in order; empty: as the program makes them
};

/// By which the plan of a step is found.
struct StepKey {
  std::string shapes, values;  // of BatchOutline
  std::vector<bool> is_frozen;
};

/// A step that was run dry and without a plan: equal records run the same operators and request the same blocks.
struct StepRecord {
  std::vector<memory::Trace::Event> events;
  std::vector<const OpType*> operators;
  bool operator==(const StepRecord&) const = default;
};

/// The plan of the steps of one key.
struct ShapePlan {
  std::string shapes;                // of BatchOutline
  std::vector<std::string> values;   // of BatchOutline, whose steps are the same: the example's, and late ones
  std::optional<StepRecord> record;  // of the example; none until a batch of other values comes
  std::vector<bool> is_frozen;       // of ExampleStep, never empty
  ExampleStep example;               // one of them
  std::string key;                   // all of these, to read
  bool is_of(const StepKey& other) const {
    return shapes == other.shapes && is_frozen == other.is_frozen &&
           std::find(values.begin(), values.end(), other.values) != values.end();
  }
  /// If no two batches have the same values, the list would grow without end.
  void forget_values() {
    constexpr std::size_t max_values = 1024;
    if (values.size() > max_values) values.erase(values.begin() + 1, values.end() - max_values / 2);
  }
  std::vector<std::shared_ptr<Planner>> planners;  // of each part; none without a budget
  std::vector<Plan> parts;                         // of which the tape's plan counts
  std::vector<StepPlacement> placement;            // of the first and of a steady step, all parts together
  std::size_t first_plan = 0;                      // index of its first one in RunPlans::placements()
  bool is_given = false;                           // by TrainerOptions::plan
  /// Of a program that is planned as a whole the part's plan has it.
  const std::vector<StepPlacement>& placed() const noexcept {
    return placement.empty() && !parts.empty() ? parts.front().placement : placement;
  }
};

/// Their addresses are stable, because runs point to them.
using ShapePlans = std::vector<std::unique_ptr<ShapePlan>>;

/// The runs that plans are made for. Their micro-batches are those of the options that RunPlans has.
class PlannedProgram {
 public:
  virtual ~PlannedProgram() = default;
  virtual std::size_t part_count() const { return 1; }
  virtual bool cuts_into(std::int64_t micro_batches) const = 0;
  /// Steps of one part that keep everything: the part's plan is made for them. Ranks that follow one plan make the
  /// steps of the first rank among them.
  virtual MakeRun part_run(const ExampleStep& step, std::size_t part) const = 0;
  /// Whether such a run is the whole program, evaluations included; its plan then needs no other placement.
  virtual bool is_whole_run() const { return false; }
  /// These steps, all parts of each, under the plans of `shapes`.
  virtual MakeRun planned_run(std::vector<ExampleStep> steps, const ShapePlans& shapes) const = 0;
  /// The plan for this rank, made from the plan for part_run's rank.
  virtual Plan for_this_rank(Plan plan, [[maybe_unused]] const ExampleStep& step, [[maybe_unused]] std::size_t part) {
    return plan;
  }
  /// The bytes that each rank needs when this one needs `own_bytes`; empty for one rank.
  virtual std::vector<std::size_t> rank_bytes([[maybe_unused]] std::size_t own_bytes) { return {}; }
  /// The process's bytes outside of its arena depend on these; a step records `nodes` nodes.
  virtual memory::OutsideFacts outside_facts(std::size_t nodes) const = 0;
  /// Throws BudgetError: the smallest plans need `least_bytes`.
  [[noreturn]] virtual void refuse(std::size_t least_bytes) = 0;
};

/// Finds the plans of all keys of a program. Parts are planned one by one; a step of all of them together, with the
/// plans of other keys, may need a little more: then they are planned again for that much less.
class RunPlans {
 public:
  /// All three outlive it. `options` has the budgets; choose_micro_batches() writes their number there.
  RunPlans(PlannedProgram& program, TrainerOptions& options, const CostModel& costs);

  /// The number with which the example steps are fastest within the budget; if none fits, the one that needs least.
  void choose_micro_batches(const std::vector<ExampleStep>& steps);
  /// Adds a key without a plan, and makes its planners if plans are searched.
  ShapePlan& add(std::unique_ptr<ShapePlan> shape);
  /// Plans all keys within the budgets. Throws BudgetError; the latest key is then gone, the others as they were.
  void fit();
  /// An arena exists from now on: its capacity is the budget.
  void hold_budget() noexcept { is_held_ = true; }
  /// Frees the planners, when nothing more will be planned.
  void release_planners();

  const ShapePlans& shapes() const noexcept { return shapes_; }
  std::vector<StepPlacement> placements() const;
  /// Of the arena; 0 for none.
  std::size_t budget_bytes() const noexcept { return budget_; }
  TrainerPlan& plan() noexcept { return plan_; }
  const TrainerPlan& plan() const noexcept { return plan_; }
  /// Of the latest placement.
  const MemoryProfile& profile() const noexcept { return profile_; }
  /// Of a step's recording, or of one of several micro-batches.
  std::size_t node_count() const noexcept { return nodes_ > 0 ? nodes_ : profile_.nodes; }
  /// Of a process that runs the plans.
  memory::OutsideFacts outside_facts() const;
  /// Of the latest key's last part: the step that keeps everything, by the cost model.
  double kept_step_s() const noexcept { return kept_step_s_; }
  /// Processor time when planning of the latest key began.
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
  std::vector<std::shared_ptr<Planner>> chosen_;  // of the chosen number of micro-batches, step after step
  TrainerPlan plan_;
  MemoryProfile profile_;
  std::size_t nodes_ = 0;
  double kept_step_s_ = 0, begin_ms_ = 0;
  bool is_held_ = false;
  bool is_dynamic_ = false;  // without a budget: a placement would need more than blocks on demand
};

}  // namespace thimble::nn
