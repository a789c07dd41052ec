#pragma once
// What make_plan plans: the program of a training run with the same setup, its evaluation included, on data of which
// the sizes alone matter. Blocks lie where that program asks for them, so its plan is that of the run.

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

class PlannedRuns {
 public:
  /// `data` is a path as TrainOptions has it: sizes that follow from it (vocabulary; image, channels, classes) are
  /// filled in to `setup`, after those of its weights (follow_weights). Empty: the model's own sizes. Throws what
  /// follow_weights, open_dataset and make_model throw.
  PlannedRuns(Setup& setup, memory::Device device, const std::string& data);

  /// Runs of a setup with these data: two steps, of which each makes its batch and reads its loss, and an evaluation in
  /// batches as they are. It must outlive the runs that it makes. Throws ValueError where the data are too few to be
  /// cut into two parts.
  nn::MakeRun of(const Setup& setup) const;
  /// Dataset::heap_bytes of the data; 0 where none are named.
  std::size_t data_bytes() const { return data_ ? data_->heap_bytes() : 0; }

 private:
  memory::Device device_;
  std::shared_ptr<Dataset> data_;  // null: none are named
};

// ---- The plan of a named model's training run, or of its forward, before it runs: the bytes it needs, and why.

/// Its sizes follow from `data` (PlannedRuns). A budget of 0 is the hardware's memory, where it has one.
struct PlanOptions : RunOptions {
  bool finds_batch = false;        ///< the largest batch for the budget, in place of the setup's
  bool finds_sequence = false;     ///< the longest sequence for the budget, of a model over tokens
  bool is_inference = false;       ///< a forward without a tape
  bool is_int8 = false;            ///< with is_inference: of the net in 8-bit codes (models/training/quantizing.h)
  bool prices_techniques = false;  ///< all of them, even where the budget is feasible
};

struct PlanReport {
  nn::Plan plan;
  Setup setup;          ///< that was planned: sizes of data, the batch and the number of micro-batches are filled in
  nn::MakeRun run;      ///< its runs (PlannedRuns); empty with `is_inference`
  PackedBytes packing;  ///< of the plan
  std::int64_t parameters = 0;
  std::int64_t batch = 0;
  std::int64_t sequence = 0;  ///< of a model over tokens; else 0
  std::int64_t micro_batches = 1;
  double clip_norm = 0;  ///< 0: gradients are not clipped
  std::size_t budget_bytes = 0;
  memory::OutsideBytes outside;  ///< on the cpu: of a training process beside its arena, which reads and writes files
  std::size_t process_budget_bytes = 0;
  bool is_feasible = true;
  nn::BudgetError why_infeasible{"", 0, 0};  ///< the plan is then the smallest one
  std::size_t minimum_bytes = 0;             ///< of all plans
  std::size_t keep_everything_bytes = 0;
  memory::CommittedParts committed;  ///< of the plan's peak
  std::string cost_model;
  std::vector<nn::PlannedSegment> segments;
  double plain_step_s = 0;                 ///< of the step that the plan's time_overhead is counted from
  std::vector<nn::LeverPrice> techniques;  ///< where asked for; where no plan keeps the budget the setup as it is, and
                                           ///< those that do
  std::size_t known_techniques = 0;        ///< of a budget that no plan keeps: that could be switched on
  std::size_t untried_techniques = 0;      ///< of these, left out for want of time or memory
  double ms = 0;                           ///< of planning, without measuring
  std::shared_ptr<nn::Planner> planner;    ///< that found the plan; null with `is_inference`
};

/// Plans the program of a training run (PlannedRuns), as prepare_training does, all on dry devices: nothing is trained,
/// and no memory beyond the planner's own is used. The plan's time_overhead is over a step with no technique switched
/// on that keeps everything (plain_step_seconds). Throws ValueError (names, sizes, techniques that do not go together;
/// `finds_batch`, `finds_sequence` and `auto` micro-batches without a budget, or two of them at once; `finds_sequence`
/// of images or with `data`), BudgetError when not even one sample, or one token, fits.
PlanReport make_plan(const PlanOptions& options);

/// The setup's ranks in groups that need the same bytes, by their lowest rank. Throws as TrainedParts does.
std::vector<std::vector<int>> alike_ranks(Setup setup, memory::Device device);

/// Ranks of the setup that need the same, and what that is.
struct RankPlan {
  std::vector<int> ranks;
  PlanReport report;  ///< without a budget, of all but the first: the bytes of keeping everything alone
};

/// The plan of every rank of the setup, those that have as much of everything planned once: the one that needs most
/// comes first, then the others by their lowest rank. Throws as make_plan does, and ValueError with `finds_batch` or
/// `is_inference`.
std::vector<RankPlan> plan_ranks(const PlanOptions& options);

/// What a batch or a sequence is held against a budget with.
enum class BatchSearch : std::uint8_t {
  plain,      ///< everything is kept, nothing is placed
  planned,    ///< the smallest plan
  in_a_third  ///< the fastest plan within the budget, which takes at most a third more time: about another forward
};

/// What is made larger.
enum class Extent : std::uint8_t {
  batch,    ///< samples of a step
  sequence  ///< tokens of a sample
};

struct Largest {
  std::int64_t size = 0;            ///< samples or tokens
  std::size_t peak_bytes = 0;       ///< within the budget
  std::size_t next_peak_bytes = 0;  ///< of one more: beyond it; in_a_third: 0
  double time_overhead = 0;         ///< of the plan
  int probes = 0;                   ///< sizes that were run dry
};

/// A size that fits while one more does not. Peaks are nearly linear in the batch, and in the sequence where no
/// operator keeps the square of it: a line through the two nearest known peaks tells where to look next, and halving
/// takes over where it does not close in. Every probe is a dry run, and both neighbours are probed. A batch is filled
/// up to whole micro-batches, so that the largest one is a multiple of them. Throws BudgetError when a size of 1 does
/// not fit, ValueError when 2^24 does, and for the sequence of a model over images.
Largest find_largest(const PlanOptions& options, std::size_t budget_bytes, BatchSearch search,
                     Extent extent = Extent::batch);

/// The search alone: `peak(size)` gives bytes.
Largest search_largest(const std::function<std::size_t(std::int64_t size)>& peak, std::size_t budget_bytes,
                       Extent extent = Extent::batch);
/// By halving, for BatchSearch::in_a_third: what is asked is whether the fastest plan within the budget is fast enough,
/// and that has no slope.
Largest search_in_a_third(const std::function<nn::Planner(std::int64_t size)>& planner, std::size_t budget_bytes);

}  // namespace thimble::models
