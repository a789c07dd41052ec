#pragma once
// Runs the steps of a trainer's program on one device, with or without plans, real or dry.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/memory/process/outside.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/rank_files.h>
#include <thimble/nn/parallel/shards.h>
#include <thimble/nn/step/captured_step.h>
#include <thimble/nn/trainer/run_plans.h>

namespace thimble::nn {

/// The unsharded program that several ranks train.
struct WholeProgram {
  std::vector<WholeState> state;                    // of each part's optimizer
  std::vector<bool> is_elementwise;                 // of each part's optimizer
  std::vector<std::vector<optim::Setting>> groups;  // of each part's optimizer, for all shards
};

/// Selects the part of a program that a run executes.
struct RunRequest {
  /// Steps to repeat; defaults to the run's current step, with its current frozen parameters.
  std::vector<ExampleStep> steps = {};
  std::optional<std::size_t> only_part = std::nullopt;  ///< defaults to all, in order
  /// Plans to follow; may be null. A run of one part then follows the plan in options().
  const ShapePlans* shapes = nullptr;
  const WholeProgram* whole = nullptr;  ///< set on several ranks, with the ranks of the options; null for one rank
  int rank = 0;                         ///< that a run on a dry device simulates
  /// The run is driven only by a loop with its options: steps after the last do nothing, and no step follows the last
  /// evaluation or checkpoint.
  bool is_scheduled = false;
  std::int64_t updates = 0;  ///< done before a dry run that resumes
  bool reads_losses = true;  ///< if false, the host does not wait for a step, and losses() stay 0
};

/// Options that change a run's results, as in the metadata of a checkpoint: "trainer.clip_norm", ...
std::map<std::string, std::string> settings_of(const TrainerOptions& options, const std::string& part,
                                               const optim::Optimizer& optimizer,
                                               const std::vector<optim::Setting>& groups);
/// Metadata of a checkpoint: the step that set the optimizer's rate.
inline constexpr const char* rate_step_key = "trainer.rate_step";
/// Whether a key of the metadata belongs to the run's state rather than to an option.
bool is_state_key(const std::string& key);

/// Throws ValueError if a function of run_sharded does more than compute a shard: gradients or sums would be wrong.
void check_shards(memory::Device device, const MakeRun& make);

class TrainerRun : public TrainingRun, public LoopedRun {
 public:
  /// The run resumes from a checkpoint of `first_step` steps, of which `first_skipped` skipped their batch.
  TrainerRun(const AnyProgram& program, const TrainerOptions& options, memory::Device device, RunRequest request,
             std::int64_t first_step = 0, std::int64_t first_skipped = 0);
  TrainerRun(const TrainerRun&) = delete;
  TrainerRun& operator=(const TrainerRun&) = delete;

  void step() override;
  StepOptions& options() override { return options_; }
  bool begins_placed_steps() const override { return true; }
  void finish(FunctionRef<void()> step) override;
  std::int64_t parameters() const override;
  RunView view() override;
  std::size_t tier_bytes() const override;

  void train_step(std::int64_t step, Progress& progress) override;
  /// Runs without a tape and in evaluation mode, after rest(). Returns nullopt for a program without an evaluation.
  std::optional<Evaluation> evaluate() override;
  /// Several ranks need a program with one part and one module. Throws as in nn/files/checkpoint.h. On a dry device,
  /// load() only compares the file with the program.
  void write_checkpoint(const std::string& path) override;
  void load(const std::string& path);
  /// Called instead of write_checkpoint(): tells the other ranks that there will be no file.
  void refuse_checkpoint(const std::string& why) override;
  std::int64_t steps_done() override { return steps_; }
  bool is_in_step() override { return next_part_ > 0; }
  bool is_best(double loss) override;
  std::int64_t worse_evaluations() override { return worse_; }
  std::int64_t skipped_steps() override;
  bool is_replay() const override { return recorded_ != nullptr && recorded_->is_captured(); }
  void end() override;
  /// Releases the captured graph and the region of a placed arena between steps, so that others can use the bytes. The
  /// next step takes them again.
  void rest() noexcept;
  /// Kernels and copies of the last replay; 0 before it.
  std::size_t captured_launches() const noexcept { return captured_launches_; }

  /// Of the next step. A step that throws can be repeated, bit for bit like one that never failed.
  StepKey next_key();
  /// Skips the next batch.
  void skip();
  std::int64_t skipped_batches() const noexcept { return skipped_; }
  /// Of each parameter of the optimizers, in order.
  std::vector<bool> is_frozen();
  /// Takes the loss of an evaluation, which may lower the rates (TrainerOptions::plateau).
  void note_evaluation(double loss);
  /// Multiplies all rates.
  double rate_factor() const noexcept { return plateau_ ? plateau_->state().factor : 1; }
  ProgramRun& program() noexcept { return *run_; }
  const std::vector<double>& losses() const noexcept { return losses_; }
  std::int64_t steps() const noexcept { return steps_; }
  std::int64_t first_step() const noexcept { return first_step_; }
  /// Bytes and messages that this rank sent to others.
  virtual dist::Communicator::Volume volume();
  RandomGenerator& generator() noexcept { return generator_; }
  optim::GradScaler* scaler() noexcept { return scaler_.get(); }
  /// The parameters of a part's optimizer; on several ranks the whole ones that its shards belong to.
  const std::vector<optim::Named>& parameters(std::size_t part) const;
  /// settings_of() all parts; keys of part i > 0 begin with "trainer.<i>.".
  std::map<std::string, std::string> settings();

 private:
  void make_program();
  void make_model(std::shared_ptr<ParameterStore> store);
  dist::DataParallel* parallel(std::size_t part) const;
  RankFiles rank_files();
  void hold_batch();
  void load_batch();
  void require_same_batch();
  void step_captured();
  void prepare_next();
  bool comes_between(std::int64_t every) const;
  std::uint64_t layout() const;
  Metadata metadata();
  const ExampleStep& next_kind();
  const BatchOutline& next_outline();
  const ShapePlan* next_shape();
  void freeze_as(const std::vector<bool>& is_frozen);
  void check_unfrozen() const;
  std::vector<optim::MicroBatch> micro_batches();
  void run_parts(const ShapePlan* shape);
  void end_step();
  [[noreturn]] void explain(const OutOfMemory& error) const;
  void make_tier(const ShapePlan& shape);
  void update_part(std::size_t part, const ShapePlan* shape);
  void free_gradients();
  void visit_load();
  optim::Optimizer* periodic() const;
  void visit_save();
  CheckpointParts checkpoint_parts();
  void set_rate(std::size_t part, std::int64_t step);

  const AnyProgram& program_;
  const TrainerOptions& trainer_options_;
  memory::Device device_;
  RunRequest request_;
  RandomGenerator generator_;
  std::size_t part_count_;
  std::unique_ptr<dist::Communicator> dry_ranks_;
  std::unique_ptr<dist::Communicator> group_;       // ranks with the other shards; null if this rank has all shards
  std::unique_ptr<dist::Communicator> like_ranks_;  // ranks with the same shard; null if all have it
  dist::Communicator* ranks_ = nullptr;             // that divide the micro-batches; null for one rank
  std::shared_ptr<const ShardRules> shards_;        // null if all layers are whole
  std::vector<std::unique_ptr<dist::DataParallel>> parallel_;  // of each part; empty on one rank
  std::unique_ptr<ProgramRun> run_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::optional<optim::Plateau> plateau_;
  std::vector<double> rates_;  // of each part's optimizer, as the program makes it
  StepOptions options_;
  std::shared_ptr<memory::Tier> tier_;   // for plans that offload; otherwise null
  memory::PlacedArena* placed_;          // behind the current resource; may be null
  std::int64_t first_step_;              // steps done when the run was made
  std::int64_t steps_;                   // steps done
  std::int64_t skipped_;                 // of these, skipped
  std::int64_t taken_ = 0;               // steps done by this run
  std::optional<double> least_loss_;     // of the evaluations in training
  std::int64_t worse_ = 0;               // evaluations in a row since the least loss
  std::int64_t rate_step_ = -1;          // the step that set the optimizers' rates; -1 if they are as made or loaded
  std::vector<double> losses_;           // of the last step
  ExampleStep kind_;                     // of the next step, unless the request lists steps
  std::optional<BatchOutline> outline_;  // of the next step's batch
  std::vector<optim::Named> constants_;  // frozen when the run was made, and in no optimizer
  // After a step that failed in part `next_part_`: the generator at the beginning of the step and of the part.
  std::size_t next_part_ = 0;
  bool has_begun_ = false;
  RandomGenerator step_begin_{0}, part_begin_{0};
  std::unique_ptr<CapturedStep> recorded_;
  std::size_t captured_launches_ = 0;
};

/// The bytes that a run needs.
struct RunNeed {
  std::size_t budget_bytes = 0;                        ///< that the arena may commit; 0 sets no bound
  std::size_t peak_bytes = 0;                          ///< that the arena will commit
  std::vector<memory::StepPlacement> placements = {};  ///< of the run's steps
  std::optional<memory::OutsideFacts> outside = {};    ///< for the bytes that the process promises outside the arena
  bool is_final = false;                               ///< no later plan needs more
};

/// An arena made for one run, and the run's loop in it.
class RunArena {
 public:
  /// `options` must outlive it. On the cpu it first compares the need with the machine's limits for this process
  /// (memory/process/host_limits.h). Throws OutOfMemory if there is no room, and DeviceError.
  RunArena(const TrainerOptions& options, RunNeed need);

  const memory::Stack& stack() const noexcept { return stack_; }
  /// Calls `make` in the arena, and loads the checkpoint that the options resume from into the run.
  template <class Make>
  auto start(const Make& make) const {
    const ResourceScope scope(stack_.top);
    auto run = make();
    if (!options_.resume.empty()) run->load(options_.resume);
    return run;
  }
  /// Runs the remaining steps of the options (nn/trainer/training_loop.h). Throws any error of a step, and FileError if
  /// the last checkpoint cannot be written.
  void run(TrainerRun& run, const LoopOptions& looped, const TrainObserver& observer, const TrainControl& control,
           RunReport& report) const;
  /// Fills in the measured figures of a report. `ranks` may be null.
  void measure(TrainerRun& run, dist::Communicator* ranks, RunReport& report) const;

 private:
  const TrainerOptions& options_;
  std::optional<memory::ProcessWatch> watch_;  // for the cpu
  memory::OutsideBytes outside_;               // the promised bound
  memory::Stack stack_;
};

}  // namespace thimble::nn
