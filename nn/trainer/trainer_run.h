#pragma once
// The steps of a trainer's program on one device: planned or not, real or dry.

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

/// One rank's view of a program that several ranks train.
struct WholeProgram {
  std::vector<WholeState> state;     // of each part's optimizer
  std::vector<bool> is_elementwise;  // of each part's optimizer
};

/// The part of its program that a run executes.
struct RunRequest {
  /// Steps to repeat; empty: the run's current steps, with its current frozen parameters.
  std::vector<ExampleStep> steps = {};
  std::optional<std::size_t> only_part = std::nullopt;  ///< none: all, one after the other
  /// Plans to follow; null: none, or for only one part that of options().
  const ShapePlans* shapes = nullptr;
  const WholeProgram* whole = nullptr;  ///< with the ranks of the options; null for one rank that has everything
  int rank = 0;                         ///< on a dry device: which of them
  /// Only a loop drives the run, by its options: steps beyond the last do nothing, and none comes after the last
  /// evaluation or checkpoint.
  bool is_scheduled = false;
  bool reads_losses = true;  ///< false: the host does not wait for a step, and losses() stay 0
};

/// Options that change what a run computes, as a checkpoint's metadata have them: "trainer.clip_norm", ...
std::map<std::string, std::string> settings_of(const TrainerOptions& options, const std::string& part,
                                               const optim::Optimizer& optimizer);
/// Metadata of a checkpoint: the step whose rate the optimizer has.
inline constexpr const char* rate_step_key = "trainer.rate_step";
/// Whether a key of that metadata belongs to the run's state rather than to an option.
bool is_state_key(const std::string& key);

class TrainerRun : public TrainingRun, public LoopedRun {
 public:
  /// `first_step`: steps done in the checkpoint that the run resumes from; `first_skipped`: of these, those that
  /// skipped their batch.
  TrainerRun(const ErasedProgram& program, const TrainerOptions& options, memory::Device device, RunRequest request,
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
  /// Without a tape, in evaluation mode, with the region given back. Throws ValueError for a program without one.
  std::optional<Evaluation> evaluate() override;
  /// On several ranks of a program with one part and one module. Throws as in nn/files/checkpoint.h. On a dry device a
  /// file is only compared with the program.
  void write_checkpoint(const std::string& path) override;
  void load(const std::string& path);
  /// Tells the other ranks, in place of write_checkpoint(), that there will be no file.
  void refuse_checkpoint(const std::string& why) override;
  std::int64_t steps_done() override { return steps_; }
  bool is_in_step() override { return next_part_ > 0; }
  bool is_best(double loss) override;
  std::int64_t worse_evaluations() override { return worse_; }
  std::int64_t skipped_steps() override;
  bool is_replay() const override { return recorded_ != nullptr && recorded_->is_captured(); }
  void end() override;
  /// Between steps: releases the captured graph and the region of a placed arena, so that others have the bytes. The
  /// next step takes them again.
  void rest() noexcept;
  /// Kernels and copies of the last replay, or 0.
  std::size_t captured_launches() const noexcept { return captured_launches_; }

  /// A step that throws can be repeated, with the bits of one that never failed.
  StepKey next_key();
  /// Skips the next batch.
  void skip();
  std::int64_t skipped_batches() const noexcept { return skipped_; }
  /// Each parameter of the optimizers, in order.
  std::vector<bool> is_frozen();
  /// The loss of an evaluation of training, by which rates may fall (TrainerOptions::plateau).
  void note_evaluation(double loss);
  /// Multiplies all rates.
  double rate_factor() const noexcept { return plateau_ ? plateau_->state().factor : 1; }
  ProgramRun& program() noexcept { return *run_; }
  const std::vector<double>& losses() const noexcept { return losses_; }
  std::int64_t steps() const noexcept { return steps_; }
  std::int64_t first_step() const noexcept { return first_step_; }
  /// That this rank sent to others.
  virtual dist::Communicator::Volume volume();
  RandomGenerator& generator() noexcept { return generator_; }
  optim::GradScaler* scaler() noexcept { return scaler_.get(); }
  /// The parameters of a part's optimizer; on several ranks whole ones, of which the optimizer has this rank's shards.
  const std::vector<optim::Named>& parameters(std::size_t part) const;
  /// Options of all parts that change the run's results (settings_of); keys of part i > 0 begin "trainer.<i>.".
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
  void visit_save();
  CheckpointParts checkpoint_parts();
  void set_rate(std::size_t part, std::int64_t step);

  const ErasedProgram& program_;
  const TrainerOptions& trainer_options_;
  memory::Device device_;
  RunRequest request_;
  RandomGenerator generator_;
  std::size_t part_count_;
  std::unique_ptr<dist::Communicator> dry_ranks_;
  std::unique_ptr<dist::Communicator> group_;       // with the other shards; null: this rank has all, or there are none
  std::unique_ptr<dist::Communicator> like_ranks_;  // with the same shard; null: all
  dist::Communicator* ranks_ = nullptr;             // that share out micro-batches; null for one rank
  std::shared_ptr<const ShardRules> shards_;        // null: all layers are whole
  std::vector<std::unique_ptr<dist::DataParallel>> parallel_;  // of each part; none on one rank
  std::unique_ptr<ProgramRun> run_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::optional<optim::Plateau> plateau_;
  std::vector<double> rates_;  // of each part's optimizer, as the program makes it
  StepOptions options_;
  std::shared_ptr<Tier> tier_;           // for offloading plans; null: none offloads
  PlacedArena* placed_;                  // behind the resource; null: none
  std::int64_t first_step_;              // steps that were done before
  std::int64_t steps_;                   // done
  std::int64_t skipped_;                 // of these, skipped
  std::int64_t taken_ = 0;               // by this run
  std::optional<double> least_loss_;     // of the evaluations of training
  std::int64_t worse_ = 0;               // evaluations in a row since that one
  std::int64_t rate_step_ = -1;          // whose rate the optimizers have; -1: the rate they were made with, or loaded
  std::vector<double> losses_;           // of the last step
  ExampleStep kind_;                     // of the next step, where the request names none
  std::optional<BatchOutline> outline_;  // of the next step's batch
  std::vector<optim::Named> constants_;  // frozen when the run was made, and of no optimizer
  // Of a step that failed in its part `next_part_`: the generator when the step began, and when that part did.
  std::size_t next_part_ = 0;
  bool has_begun_ = false;
  RandomGenerator step_begin_{0}, part_begin_{0};
  std::unique_ptr<CapturedStep> recorded_;
  std::size_t captured_launches_ = 0;
};

/// The bytes that a plan needs.
struct RunNeed {
  std::size_t budget_bytes = 0;                      ///< that the arena may commit; 0: as many as it takes
  std::size_t peak_bytes = 0;                        ///< that it will commit
  std::vector<StepPlacement> placements = {};        ///< of its steps
  std::optional<memory::OutsideFacts> outside = {};  ///< of a process that promises its bytes beside the arena
  bool is_final = false;                             ///< no later plan needs more
};

/// An arena for one run.
class Engine {
 public:
  /// `options` must outlive it. On the cpu the need is first compared with the machine's limits for this process
  /// (memory/process/host_limits.h): throws OutOfMemory if there is no room for it; DeviceError.
  Engine(const TrainerOptions& options, RunNeed need);

  const memory::Stack& stack() const noexcept { return stack_; }
  /// The run that `make` returns, made in the arena, with the state of the checkpoint that the options resume from.
  template <class Make>
  auto start(const Make& make) const {
    const ResourceScope scope(stack_.top);
    auto run = make();
    if (!options_.resume.empty()) run->load(options_.resume);
    return run;
  }
  /// The remaining steps of the options (nn/trainer/training_loop.h). Throws what a step throws; FileError if the last
  /// checkpoint cannot be written.
  void run(TrainerRun& run, const LoopOptions& looped, const TrainObserver& observer, const TrainControl& control,
           RunReport& report) const;
  /// Fills in the figures of a run, beside the predicted ones. `ranks` may be null.
  void measure(TrainerRun& run, dist::Communicator* ranks, RunReport& report) const;

 private:
  const TrainerOptions& options_;
  std::optional<memory::ProcessWatch> watch_;  // on the cpu
  memory::OutsideBytes outside_;               // promised
  memory::Stack stack_;
};

}  // namespace thimble::nn
