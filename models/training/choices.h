#pragma once
// Ways to make a step need less: bytes and cost of each technique, and the best number of micro-batches for a budget.
// All on dry devices.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/models/training/run_options.h>
#include <thimble/nn/fit/levers.h>
#include <thimble/nn/trainer/run_plans.h>

namespace thimble::models {

/// Makes a setup's runs: zero_batch_run, or runs with data and evaluations.
using RunOfSetup = std::function<nn::MakeRun(const Setup& setup)>;

/// Throws ValueError for a process budget on a GPU or on several ranks, whose bytes outside the arena are unknown.
void check_process_budget(const RunOptions& options);

/// The facts that determine the bytes of a run on the cpu outside its arena (memory/process/outside.h): threads of
/// kernels and tiers, nodes of a step, files that it reads or writes, data on the heap.
memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes);

struct ChoiceOptions : nn::LeverSearch {
  ChoiceOptions() = default;
  /// Starts the clock of `refusal_ms`.
  ChoiceOptions(const RunOptions& options, const nn::CostModel& model, RunOfSetup runs);

  RunOfSetup run_of = zero_batch_run;
  bool captures_steps = false;  ///< leaves out techniques that cannot be captured
  bool prices_away = false;     ///< prices tensors in a tier even if something fits without
};

/// Whether any of these is on: micro-batches, the chunked head, tiled feed-forward layers, the fused optimizer.
bool has_techniques(const Setup& setup);

/// Seconds of the step that overheads are relative to, by the cost model: without techniques, keeping everything.
/// `kept_step_s` is the setup's own step that keeps everything; if the setup has techniques, a step without them is
/// recorded, except with measured times. Throws as the run does.
double plain_step_seconds(const ChoiceOptions& options, const Setup& setup, double kept_step_s);

/// Prices the unchanged setup; then each technique that is off and can join it: the fused optimizer, the chunked head,
/// tiled feed-forward layers, 2, 4 and 8 micro-batches if they divide the batch; then the strongest combinations of
/// these; then, if none fits the budget or on request, optimizer state, gradients and parameters in a tier, with the
/// time of their transfers. Times are by the machine's numbers, even if others were measured. Plans each of them.
/// Throws as the runs do.
std::vector<nn::LeverPrice> price_techniques(const ChoiceOptions& options, const Setup& setup);

/// Tries the list of price_techniques, and tensors offloaded or packed by the plan (nn::offer_levers). Offers nothing
/// if memory runs out. Throws as the runs do.
nn::LeverOffers offer_techniques(const ChoiceOptions& options, const Setup& setup);

/// A setup's runs, planned within the budgets of `planning`. In stage 3 of ZeRO and with sharded layers or sequences,
/// ranks exchange tensors in the order in which operators need them. So all ranks of a pipeline stage follow one plan,
/// within the budget of each; only the blocks are placed rank by rank. All ranks find the same plan.
class PlannedSetup final : public nn::PlannedProgram {
 public:
  /// `choices` makes the runs. For `auto_micro_batches` it chooses, among 1, 2, 4, ... that divide the batch, the
  /// number with the fastest plan for the budget by the cost model. `outside` needs no nodes. Throws ValueError for
  /// auto without a budget, with measured times, or in a setup that excludes micro-batches; else as check_lossy and the
  /// runs do.
  PlannedSetup(const ChoiceOptions& choices, const Setup& setup, nn::TrainerOptions planning,
               const memory::OutsideFacts& outside = {});

  /// Throws BudgetError.
  void fit();
  /// The placed plan. Call after fit().
  nn::Plan plan() const;
  /// This rank's planner, made if it has none.
  std::shared_ptr<nn::Planner> planner();
  /// With the chosen number of micro-batches.
  const Setup& setup() const noexcept { return setup_; }
  nn::RunPlans& plans() noexcept { return plans_; }

 private:
  bool cuts_into(std::int64_t micro_batches) const override { return setup_.batch % micro_batches == 0; }
  nn::MakeRun part_run(const nn::ExampleStep& step, std::size_t part) const override;
  bool is_whole_run() const override { return true; }
  nn::MakeRun planned_run(std::vector<nn::ExampleStep> steps, const nn::ShapePlans& shapes) const override;
  nn::Plan for_this_rank(nn::Plan plan, const nn::ExampleStep& step, std::size_t part) override;
  std::vector<std::size_t> rank_bytes(std::size_t own_bytes) override;
  memory::OutsideFacts outside_facts(std::size_t nodes) const override;
  [[noreturn]] void refuse(std::size_t least_bytes) override;

  Setup of_rank(int rank) const;
  void check_auto() const;

  ChoiceOptions choices_;
  Setup setup_;
  nn::TrainerOptions planning_;
  memory::OutsideFacts outside_;
  int first_rank_, end_rank_;            // the ranks [first, end) follow one plan
  std::vector<std::size_t> rank_bytes_;  // their peaks, if they are several
  nn::RunPlans plans_;
};

/// The options for planning a setup: budget, device, actions that plans may take.
nn::TrainerOptions planning_options(const RunOptions& options, std::size_t budget_bytes);

}  // namespace thimble::models
