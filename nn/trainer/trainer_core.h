#pragma once
// The part of nn/trainer/trainer.h that is independent of the user's types.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/process/outside.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/trainer/program.h>
#include <thimble/optim/schedule.h>

namespace thimble::dist {
class Communicator;
}

namespace thimble::nn {

struct Lever;

/// Ranks that train a program together, bit for bit like one rank with all micro-batches (dist/data_parallel.h). Each
/// rank computes its own micro-batches of every batch, so several ranks need TrainedProgram::micro_batch.
struct RankOptions {
  dist::Communicator* ranks = nullptr;  ///< must outlive the trainer; may be null
  int zero = 0;                         ///< stage of ZeRO, 0 to 3; stage 3 also shards parameters
  std::size_t bucket_bytes = 25 << 20;  ///< of gradients that are sent together
  int read_ahead = 1;                   ///< modules whose parameters are fetched before use, in stage 3
  /// Tensor-parallel degree: this number of consecutive ranks compute the same micro-batches, each with one shard of
  /// every layer in `sharded`. A single rank holds all shards and computes the same bits as several. The model computes
  /// these layers within nn::run_sharded.
  int tensor_parallel = 1;
  std::vector<ShardedChild> sharded = {};  ///< names end the paths of layers; Sharding::vocabulary is for embeddings

  /// Groups of ranks that compute different micro-batches.
  int data_ranks() const noexcept;
};

/// Tensors that wait in a tier between uses (memory/offload/tier.h): a file for the cpu, the host's pinned memory for a
/// GPU. Offloading changes no bit.
struct OffloadOptions {
  std::string folder = {};     ///< holds the file, on a disk that supports direct access; for the cpu only
  bool saved_tensors = false;  ///< that backward reads, chosen by plans; needs a budget
  bool optimizer = false;      ///< state, between updates
  bool gradients = false;      ///< until their parameter is updated; not with micro-batches, a loss scale or ranks
  bool parameters = false;     ///< between uses; for one rank
  int read_ahead = 1;          ///< modules whose parameters are read before use
  bool any() const noexcept { return saved_tensors || optimizer || gradients || parameters; }
};

/// A trainer's StepOptions::micro_batches: chooses 1, 2, 4, ... or 64, the fastest in the budget by the cost model.
inline constexpr std::int64_t auto_micro_batches = 0;

struct TrainerOptions {
  std::size_t budget_bytes = 0;  ///< that the arena may commit; 0 sets no bound and plans nothing
  /// Bytes that the whole process may hold, on the cpu and one rank. The arena gets the rest after code, heap, threads
  /// and files (memory/process/outside.h), but at most budget_bytes, if given. 0 sets no bound.
  std::size_t process_budget_bytes = 0;
  memory::Device device = cpu;
  /// For layers that the program makes without options: `nn::precision("O2").on(cpu)`, say. The trainer sets the
  /// device.
  TensorOptions layers = {};
  std::uint64_t seed = 1;
  std::int64_t steps = 100;         ///< of run()
  std::int64_t evaluate_every = 0;  ///< steps between evaluations; run() also evaluates after the last step
  std::vector<std::int64_t> example_steps = {0};  ///< plans their shapes before the first step
  /// Clipping, micro-batches, the fused optimizer and on_gradients, which is called for each part; the trainer sets the
  /// rest. It counts the samples of micro-batches: `micro_samples` must be the largest count, and `parts` must have
  /// these samples, with any weights.
  StepOptions step = {};
  std::optional<optim::GradScalerOptions> loss_scale = {};  ///< for a program with one part; scales nothing by default
  std::function<double(std::int64_t step)> rate = nullptr;  ///< for all optimizers; defaults to their own rates
  /// Multiplies all rates by a factor that falls when evaluations stop improving. Checkpoints contain it.
  std::optional<optim::PlateauOptions> plateau = {};
  /// Every rank makes the trainer with the same program and options. `step.micro_batches` and the budget are per rank.
  /// Rank 0 writes files.
  RankOptions ranks = {};
  OffloadOptions offload = {};
  std::string hardware = {};  ///< whose times planning uses (nn/fit/cost.h); defaults to the device's kind
  /// Actions of plans that cost transfers or exactness. `make_tier`, if given, also makes the tiers of `offload`.
  PlannerOptions planner = {};
  /// Follows a plan of Trainer::step_plan(), such as nn::plan_file(path), without a search. For a program with one
  /// part.
  PlanSource plan = nullptr;
  /// Approximate limit of the processor time that refusing a budget takes, in milliseconds; 0 sets no bound.
  double refusal_ms = default_refusal_ms;
  bool is_strict = false;  ///< with a budget or plan: a step that leaves its plan throws PlanError
  /// On a CUDA device, captures steps as a graph and replays it from the third step on (nn/step/captured_step.h), with
  /// the same bits. For a program with one part on one rank whose batches differ only in the values of tensors.
  bool captures_steps = false;
  bool skips_unfitting = false;  ///< skips and counts batches that no plan fits; otherwise they throw BudgetError
  // For run(); on several ranks, for a program with one part and one module. Saving and loading use memory only for
  // offloaded or sharded state.
  std::string save = {};  ///< a checkpoint (nn/files/checkpoint.h), written at the end and every `save_every` steps
  std::int64_t save_every = 0;  ///< steps between checkpoints; 0 saves only at the end
  std::int64_t keep = 1;        ///< checkpoints to keep: the newest, and older ones as `<save>.step-K`
  std::string best = {};        ///< a checkpoint of the evaluation with the least loss so far
  /// run() ends after this many evaluations in a row without a new least loss (TrainEnd::no_better); 0 disables it.
  std::int64_t patience = 0;
  bool overwrites = false;  ///< may replace files of other kinds
  /// A checkpoint to resume from, bit for bit like a run that never ended. The evaluation after the last step of the
  /// earlier run counts for `best`, `patience` and `plateau`: with them, `evaluate_every` should divide its steps.
  std::string resume = {};
  /// With `resume`, lets options given here (optimizer, rate, clipping, micro-batches, loss scale) replace the file's.
  /// Otherwise each difference is named in a ValueError. Older files record only the rate.
  bool changes_options = false;
  std::string log = {};  ///< folder for TensorBoard curves

  /// Per step, over all ranks.
  std::int64_t all_micro_batches() const noexcept;
};

/// Predicted bytes and time of a trainer.
struct TrainerPlan {
  struct Part {
    std::string name, description;
    double time_overhead = 0;  ///< over keeping everything, by the cost model
    double time_gap = 0;       ///< over a proven lower bound of the time in the same bytes; 0 if unknown
  };
  struct Shapes {
    std::string key;
    std::int64_t example_step = 0;
    std::vector<Part> parts;
  };
  std::size_t budget_bytes = 0;          ///< for the arena; 0 means no budget
  std::int64_t micro_batches = 1;        ///< of a rank's step, given or chosen
  std::size_t process_budget_bytes = 0;  ///< 0 means no budget
  memory::OutsideBytes outside = {};     ///< outside the arena, if the process has a budget
  std::size_t peak_bytes = 0;            ///< that the arena will commit, over steps of all shapes and the evaluation
  std::vector<std::size_t> rank_peak_bytes = {};  ///< empty for one rank
  std::size_t keep_everything_bytes = 0;          ///< of the largest step
  std::size_t lower_bound_bytes = 0;              ///< no placement of the same steps needs less
  std::size_t tier_bytes = 0;                     ///< in tiers, in addition to the arena
  memory::CategoryBytes peak_by_category{};       ///< of tensors live at the peak
  std::vector<Shapes> shapes;
  std::string text() const;
};

struct ExampleStep;
struct StepKey;
struct StepRecord;
struct WholeProgram;
struct ShapePlan;
class RunArena;
class RunPlans;
class TrainerRun;

class TrainerCore {
 public:
  TrainerCore(std::unique_ptr<AnyProgram> program, TrainerOptions options);
  ~TrainerCore();
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;

  const TrainerPlan& plan() const noexcept;
  Progress step();
  void skip();
  std::int64_t skipped_batches();
  /// Batches that were skipped, and steps that the loss scaler skipped.
  std::int64_t skipped_steps();
  RunReport run(const TrainObserver& observer, const TrainControl& control);
  Evaluation evaluate();
  void save(const std::string& path);
  ProgramRun& live();
  Certificate certify(std::int64_t steps);
  std::size_t peak_bytes() const;
  std::string memory() const;
  std::string explain();
  const Plan& step_plan() const;
  memory::PlacedArena::Statistics placed() const;

 private:
  class Planned;
  class Live;
  void check() const;
  void check_files();
  void check_parts();
  Live& started();
  StepKey key_of(std::int64_t step) const;
  void require_planned(std::int64_t step, const StepKey& key);
  StepRecord record(const ExampleStep& step) const;
  void add_shape(std::int64_t step, const StepKey& key);
  void complete_planning();
  /// Whether steps follow plans.
  bool is_planned() const noexcept {
    return options_.budget_bytes > 0 || options_.process_budget_bytes > 0 || options_.plan;
  }
  MakeRun part_steps(const ExampleStep& step, std::size_t part) const;
  MakeRun whole_steps(std::vector<ExampleStep> steps, bool is_planned) const;
  void require_alike() const;
  void require_same(const std::string& function, const std::string& what, double own) const;
  int rank() const noexcept;
  /// Names a call while it runs.
  struct Call {
    Call(const char*& slot, const char* name) : slot_(slot) { slot_ = name; }
    ~Call() { slot_ = nullptr; }
    const char*& slot_;
  };
  void require_idle(const char* call, bool trains) const;
  std::vector<Lever> levers(const ShapePlan& shape, std::size_t part) const;
  std::string what_would_fit(const ShapePlan& shape) const;
  [[noreturn]] void refuse_budget(std::size_t least_bytes);
  void describe();

  std::unique_ptr<const AnyProgram> program_;
  TrainerOptions options_;
  std::int64_t first_step_ = 0;                // of the checkpoint that the run resumes from
  std::int64_t first_skipped_ = 0;             // of these, skipped batches
  std::vector<bool> is_frozen_;                // as the program makes the optimizers' parameters
  std::unique_ptr<const WholeProgram> whole_;  // null for one rank
  CostModel costs_;
  std::string machine_;  // the machine that the plans are made for
  std::unique_ptr<Planned> planned_;
  std::unique_ptr<RunPlans> plans_;
  const char* training_ = nullptr;   // the running call that trains: step(), run(), ...
  const char* calling_ = nullptr;    // the running call that uses the program's functions
  std::unique_ptr<RunArena> arena_;  // null before the first step
  std::unique_ptr<Live> run_;
};

}  // namespace thimble::nn
