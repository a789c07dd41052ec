#pragma once
// The part of nn/trainer/trainer.h that does not depend on the types of the user's model and batch.

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

/// Ranks that train a program together, with the bits of one rank that has all micro-batches (dist/data_parallel.h).
/// Each computes its own micro-batches of every batch, so several need TrainedProgram::micro_batch.
struct RankOptions {
  dist::Communicator* ranks = nullptr;  ///< lives as long as the trainer; may be null
  int zero = 0;                         ///< stage of ZeRO, 0 to 3: from 3 on parameters are sharded, too
  std::size_t bucket_bytes = 25 << 20;  ///< of gradients that are sent together
  int read_ahead = 1;                   ///< modules whose parameters are fetched before use, in stage 3
  /// Tensor-parallel degree: as many ranks in a row, each with one shard of every layer in `sharded`, compute the same
  /// micro-batches. One rank without others has all shards, and the bits of several. The model computes these layers
  /// within nn::run_sharded.
  int tensor_parallel = 1;
  std::vector<ShardedChild> sharded = {};  ///< names end the paths of layers; vocabulary: of embeddings only

  /// Groups of ranks that compute different micro-batches.
  int data_ranks() const noexcept;
};

/// Tensors kept in a tier between uses (memory/offload/tier.h): on the cpu in a file, from a GPU in pinned memory of
/// the host. The bits are those of a run that keeps them.
struct OffloadOptions {
  std::string folder = {};     ///< of the file, on a disk with room for direct access; for the cpu only
  bool saved_tensors = false;  ///< those that backward reads, as plans choose; needs a budget
  bool optimizer = false;      ///< its state, between updates
  bool gradients = false;      ///< until their parameter is updated; not with micro-batches, a loss scale or ranks
  bool parameters = false;     ///< between their uses; on one rank
  int read_ahead = 1;          ///< modules whose parameters are read before use
  bool any() const noexcept { return saved_tensors || optimizer || gradients || parameters; }
};

/// As StepOptions::micro_batches of a trainer: 1, 2, 4, ... up to 64, the fastest within the budget by the cost model.
inline constexpr std::int64_t auto_micro_batches = 0;

struct TrainerOptions {
  std::size_t budget_bytes = 0;  ///< that the arena may commit; 0: as many as it takes, and nothing is planned
  /// That the whole process may hold, on the cpu and one rank: the arena gets the rest beside code, heap, threads and
  /// files (memory/process/outside.h), and no more than budget_bytes, where that is given. 0 sets no bound.
  std::size_t process_budget_bytes = 0;
  memory::Device device = cpu;
  /// Of layers that the program makes without options: `nn::precision("O2").on(cpu)`, say. Their device is the
  /// trainer's.
  TensorOptions layers = {};
  std::uint64_t seed = 1;
  std::int64_t steps = 100;         ///< of run()
  std::int64_t evaluate_every = 0;  ///< steps between evaluations, 0: none; one more follows the last step
  std::vector<std::int64_t> example_steps = {0};  ///< whose shapes are planned before the first step
  /// Clipping, micro-batches, the fused optimizer and on_gradients, which is called for each part. The trainer counts
  /// the samples of micro-batches; `micro_samples` and `parts`, where given, must agree (the largest has
  /// micro_samples), but for the weights in `parts`. The rest of it is the trainer's.
  StepOptions step = {};
  std::optional<optim::GradScalerOptions> loss_scale = {};  ///< of a program with one part; none: it is not scaled
  std::function<double(std::int64_t step)> rate = nullptr;  ///< of all optimizers; null: as they are
  /// Multiplies the rates of all optimizers by a factor that falls when evaluations stop improving; checkpoints contain
  /// it.
  std::optional<optim::PlateauOptions> plateau = {};
  /// Every rank makes the trainer with the same program and options. `step.micro_batches` are those of each rank, and
  /// the budget is of each rank's arena. Rank 0 writes files.
  RankOptions ranks = {};
  OffloadOptions offload = {};
  std::string hardware = {};  ///< whose times plans are made with (nn/fit/cost.h); empty: the device's kind
  /// Actions of plans that cost transfers or exactness. Its make_tier, if given, makes the tiers of `offload`.
  PlannerOptions planner = {};
  /// A plan of Trainer::step_plan(), for a program with one part: nn::plan_file(path). The trainer follows it without a
  /// search.
  PlanSource plan = nullptr;
  /// Processor time in milliseconds that the refusal of a budget takes at most, about; 0 sets no bound.
  double refusal_ms = default_refusal_ms;
  bool is_strict = false;  ///< a step that leaves its plan, if it has one, is a PlanError
  /// On a CUDA device steps are captured as a graph and replayed (nn/step/captured_step.h), from the third on: the same
  /// bits. For a program with one part on one rank, whose batches differ only in the values of their tensors.
  bool captures_steps = false;
  bool skips_unfitting = false;  ///< a batch that no plan fits is skipped and counted; false: BudgetError
  // Of run(); on several ranks of a program with one part and one module. Saving and loading take memory only for state
  // that is away.
  std::string save = {};        ///< a checkpoint (nn/files/checkpoint.h), at the end and every `save_every` steps
  std::int64_t save_every = 0;  ///< 0: only at the end
  std::int64_t keep = 1;        ///< checkpoints that stay: the newest, and older ones as `<save>.step-K`
  std::string best = {};        ///< a checkpoint of the evaluation with the least loss so far, replaced by better ones
  /// Evaluations in a row without a new least loss after which run() ends (TrainEnd::no_better); 0 disables it.
  std::int64_t patience = 0;
  bool overwrites = false;  ///< files of other kinds with these names may be replaced
  std::string resume = {};  ///< a checkpoint to resume from, with the bits of a run that never ended
  /// Of `resume`: options here (the optimizer's, rate, clipping, micro-batches, loss scale) win over the file's. false:
  /// others than the file's are refused by name. Older files have only the rate.
  bool changes_options = false;
  std::string log = {};  ///< a folder for TensorBoard

  /// Of a step, over all ranks.
  std::int64_t all_micro_batches() const noexcept;
};

/// The bytes and time that a trainer will need.
struct TrainerPlan {
  struct Part {
    std::string name, description;
    double time_overhead = 0;  ///< over keeping everything, by the cost model
    double time_gap = 0;       ///< over the least possible in as many bytes at most, by a proven bound; 0: not known
  };
  struct Shapes {
    std::string key;
    std::int64_t example_step = 0;
    std::vector<Part> parts;
  };
  std::size_t budget_bytes = 0;          ///< of the arena; 0 for no budget
  std::int64_t micro_batches = 1;        ///< of a rank's step, given or chosen
  std::size_t process_budget_bytes = 0;  ///< 0 for no budget
  memory::OutsideBytes outside = {};     ///< of the arena, if the process has a budget
  std::size_t peak_bytes = 0;            ///< that the arena will commit: steps of all shapes, and the evaluation
  std::vector<std::size_t> rank_peak_bytes = {};  ///< of each of several ranks; empty for one
  std::size_t keep_everything_bytes = 0;          ///< of the step that needs most
  std::size_t lower_bound_bytes = 0;              ///< no placement of the same steps needs less
  std::size_t tier_bytes = 0;                     ///< that tiers will occupy beside the arena
  CategoryBytes peak_by_category{};               ///< of the tensors that live at the peak
  std::vector<Shapes> shapes;
  std::string text() const;
};

struct ExampleStep;
struct StepKey;
struct StepRecord;
struct WholeProgram;
struct ShapePlan;
class Engine;
class RunPlans;
class TrainerRun;

class TrainerCore {
 public:
  TrainerCore(std::unique_ptr<ErasedProgram> program, TrainerOptions options);
  ~TrainerCore();
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;

  const TrainerPlan& plan() const noexcept;
  Progress step();
  void skip();
  std::int64_t skipped_batches();
  /// These, and steps that the loss scaler skipped.
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
  PlacedArena::Statistics placed() const;

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

  std::unique_ptr<const ErasedProgram> program_;
  TrainerOptions options_;
  std::int64_t first_step_ = 0;                // done in the checkpoint that the run resumes from
  std::int64_t first_skipped_ = 0;             // of these, skipped
  std::vector<bool> is_frozen_;                // as the program makes the optimizers' parameters
  std::unique_ptr<const WholeProgram> whole_;  // null for one rank
  CostModel costs_;
  std::string machine_;  // that the plans are made for
  std::unique_ptr<Planned> planned_;
  std::unique_ptr<RunPlans> plans_;
  const char* training_ = nullptr;  // the call that trains: step(), run(), ...
  const char* calling_ = nullptr;   // and the call that runs functions of the program now
  std::unique_ptr<Engine> engine_;  // null before the first step
  std::unique_ptr<Live> run_;
};

}  // namespace thimble::nn
