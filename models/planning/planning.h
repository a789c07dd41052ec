#pragma once
// Plans a named model's training run, or its forward, before it runs: make_plan runs the program of training,
// evaluation included, on dry data. The program allocates blocks in the run's order, so its plan is the run's.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/memory/process/outside.h>
#include <thimble/memory/summary.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/segments.h>

namespace thimble::models {

/// Throws ValueError for `resume`, `plan`, `sample` and `captures_steps`: only an Engine plans such a run.
void require_new_run(const RunOptions& options);

class PlannedRuns {
 public:
  /// Fills in the sizes of `options.setup`, first from its weights (follow_weights), then from `options.data`
  /// (vocabulary, or image, channels and classes). Without data the model's sizes stay. Throws as follow_weights,
  /// open_dataset and make_model do.
  explicit PlannedRuns(RunOptions& options);

  /// Makes runs of the options with this setup: the steps of Engine::runs, each of which makes its batch and reads its
  /// loss, and evaluations in batches of the real sizes. The returned function must outlive its runs. Throws ValueError
  /// if the data are too few for a training and a validation split.
  nn::MakeRun of(const Setup& setup) const;
  /// Dataset::heap_bytes of the data; 0 without data.
  std::size_t data_bytes() const { return data_ ? data_->heap_bytes() : 0; }

 private:
  RunOptions options_;
  std::shared_ptr<Dataset> data_;  // null without data
};

// ---- The plan: the bytes that a run needs, and why.

/// The question that a plan answers; by default whether the run fits.
struct PlanRequest {
  bool finds_batch = false;        ///< finds the largest batch for the budget, in place of the setup's
  bool finds_sequence = false;     ///< finds the longest sequence for the budget, for a model over tokens
  bool is_inference = false;       ///< plans a forward without a tape
  bool is_int8 = false;            ///< with is_inference: in 8-bit codes (models/training/quantizing.h)
  bool prices_techniques = false;  ///< prices all techniques, even if the budget is feasible
};

struct PlanReport {
  PlanRequest request;
  nn::Plan plan;
  Setup setup;          ///< as planned: sizes, batch and number of micro-batches filled in
  nn::MakeRun run;      ///< runs of `setup` (PlannedRuns); empty with `is_inference`
  PackedBytes packing;  ///< of the plan
  std::int64_t parameters = 0;
  std::int64_t batch = 0;
  std::int64_t sequence = 0;  ///< of a model over tokens, else 0
  std::int64_t micro_batches = 1;
  double clip_norm = 0;  ///< 0 if gradients are not clipped
  std::size_t budget_bytes = 0;
  memory::OutsideBytes outside;  ///< on the cpu: of a training process that reads and writes files
  std::size_t process_budget_bytes = 0;
  bool is_feasible = true;
  nn::BudgetError why_infeasible{"", 0, 0};  ///< then the plan is the smallest
  std::size_t minimum_bytes = 0;             ///< of the smallest plan
  std::size_t keep_everything_bytes = 0;
  memory::CommittedParts committed;  ///< at the plan's peak
  std::string cost_model;
  std::vector<nn::PlannedSegment> segments;
  double plain_step_s = 0;                 ///< of the step that the plan's time_overhead is relative to
  std::vector<nn::LeverPrice> techniques;  ///< if asked for; if no plan fits, the setup and techniques that make it fit
  std::size_t known_techniques = 0;        ///< if no plan fits: techniques that could be switched on
  std::size_t untried_techniques = 0;      ///< of these, techniques left out for lack of time or memory
  double ms = 0;                           ///< of planning, measuring excluded
  std::shared_ptr<nn::Planner> planner;    ///< made the plan; null with `is_inference`
};

/// Plans a training run as Engine does, on dry devices: it trains nothing, opens no file but the data, the weights'
/// header and `times`, and uses no memory beyond the planner's. A budget of 0 means the hardware's memory, if it has
/// one. The plan's time_overhead is relative to a step without techniques that keeps everything (plain_step_seconds).
/// Throws as require_new_run does; ValueError (names, sizes, techniques that exclude each other; `finds_batch`,
/// `finds_sequence` and `auto` micro-batches without a budget, or two of them at once; `finds_sequence` for images or
/// with `data`); BudgetError when not even one sample, or one token, fits.
PlanReport make_plan(const RunOptions& options, const PlanRequest& request = {});

/// The setup's ranks, divided into lists that need equal bytes, by their lowest rank. Throws as ModelParts does.
std::vector<std::vector<int>> alike_ranks(Setup setup, memory::Device device);

/// Ranks of the setup that need equal bytes, and their plan.
struct RankPlan {
  std::vector<int> ranks;
  PlanReport report;  ///< without a budget, all but the first have only the bytes of keeping everything
};

/// The plans of all ranks, one per list of alike_ranks: first the ranks that need most, then the others by their lowest
/// rank. Throws as make_plan does, and ValueError with `finds_batch`, `finds_sequence` or `is_inference`.
std::vector<RankPlan> plan_ranks(const RunOptions& options, const PlanRequest& request = {});

/// The plan that must fit the budget.
enum class BatchSearch : std::uint8_t {
  plain,      ///< keeps everything, in a placement if that needs less
  planned,    ///< the smallest plan
  in_a_third  ///< the fastest within the budget, if it takes at most a third more time, about another forward
};

/// The dimension that is made larger.
enum class Extent : std::uint8_t {
  batch,    ///< samples of a step
  sequence  ///< tokens of a sample
};

struct Largest {
  std::int64_t size = 0;            ///< samples or tokens
  std::size_t peak_bytes = 0;       ///< within the budget
  std::size_t next_peak_bytes = 0;  ///< of one more, beyond the budget; 0 for in_a_third
  double time_overhead = 0;         ///< of the plan
  int probes = 0;                   ///< sizes run dry
};

/// A size that fits although one more does not. Peaks are nearly linear in the batch, and in the sequence unless an
/// operator keeps its square. So the search follows the line through the two nearest known peaks, bisects where that
/// does not close in, and from 32 on tries a sixteenth more than the result. Every probe is a dry run; the result and
/// one more are both probed. A batch is rounded up to whole micro-batches, so the largest is a multiple of them. Throws
/// BudgetError when a size of 1 does not fit, ValueError when 2^24 does, and for the sequence of a model over images.
/// `request` says whether a step or a forward is meant.
Largest find_largest(const RunOptions& options, std::size_t budget_bytes, BatchSearch search,
                     Extent extent = Extent::batch, const PlanRequest& request = {});

/// The search of find_largest; `peak(size)` returns bytes.
Largest search_largest(const std::function<std::size_t(std::int64_t size)>& peak, std::size_t budget_bytes,
                       Extent extent = Extent::batch);
/// Bisects, for BatchSearch::in_a_third: whether a plan is fast enough has no slope.
Largest search_in_a_third(const std::function<nn::Planner(std::int64_t size)>& planner, std::size_t budget_bytes);

}  // namespace thimble::models
