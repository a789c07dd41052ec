#pragma once
// Training a named model, on data by path, in a given number of bytes (include models/models.h):
//
//   models::TrainOptions options;
//   options.setup.model = "char-gpt";  // any name of models::model_list()
//   options.setup.sizes.width = 96;    // defaults to the model's
//   options.data = "synthetic";        // or a path: see open_dataset
//   options.steps = 6;
//   options.budget_bytes = static_cast<std::size_t>(parse_size("64 MiB"));
//   options.save = folder + "/run";
//   options.log = folder + "/curves";
//   const models::PreparedTraining prepared = models::prepare_training(options);
//   std::printf("%zu bytes\n", prepared.plan.peak_bytes);  // before the first step; the arena will take exactly this
//   const models::TrainReport report =
//       models::train(prepared, [](const nn::Progress& p) { std::printf("loss %f\n", p.loss); });
//
// A run resumes from that checkpoint, with the bits of a run that was never interrupted:
//
//   options.resume = options.save;
//   options.steps = 9;
//   const models::TrainReport rest = models::train(models::prepare_training(options));
//
// The dry run predicts the program that trains: the same class on another device. nn/trainer/trainer.h trains your own
// models.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/files/outputs.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/alike.h>
#include <thimble/memory/stack.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/choices.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::models {

struct TrainOptions : RunOptions {
  std::int64_t steps = 100;           ///< in total: a resumed run does the rest
  std::string schedule = "constant";  ///< constant; cosine, down to min_rate; step, x 0.1 after each third of the steps
  std::int64_t warmup = 0;            ///< steps in which the rate first rises linearly
  double min_rate = 0;                ///< lower bound of the rate after the warm-up
  std::int64_t eval_every = 0;        ///< steps between evaluations; 0 evaluates only at the end
  std::int64_t eval_batches = 16;     ///< batches of an evaluation; 0 takes the whole validation split
  std::int64_t sample = 0;            ///< tokens to generate at the end, with a text model
  std::string save;                   ///< a checkpoint, written at the end and every `save_every` steps
  std::int64_t save_every = 0;        ///< 0 saves only at the end
  std::int64_t keep = 1;              ///< checkpoints to keep: the newest, and older ones as `<save>.step-K`
  std::string resume;                 ///< a checkpoint to resume from
  std::string save_weights;           ///< a file for the parameters at the end, in the model's public layout
  std::string save_adapters;          ///< a PEFT folder for the adapters at the end (nn/lora/adapter_files.h)
  std::string log;                    ///< a folder for TensorBoard
  bool overwrites = false;            ///< may replace files of other kinds
  std::string plan;                   ///< a file of nn::write_plan to follow, without planning
  bool is_strict = false;             ///< a step that leaves its plan is an error
  bool captures_steps = false;        ///< captures and replays steps, on a CUDA device (nn/step/captured_step.h)
  std::vector<files::Output> other_outputs = {};  ///< that the caller writes, to check with these
  /// For a setup of several ranks, which all call prepare_training and train with the same options, except for
  /// `setup.layout.rank`. Must outlive the run.
  dist::Communicator* ranks = nullptr;
};

/// The setup's share of each batch.
BatchShare share_of(const Setup& setup);

/// The learning rate of step `step` (from 0), where `rate` is the optimizer's. Throws ValueError for an unknown
/// schedule or a warm-up longer than the steps.
double rate_at(const TrainOptions& options, double rate, std::int64_t step);

/// A constant batch for dry runs and timing; zeros on a dry device.
enum class KeptBatch : std::uint8_t { zeros, random };

/// A named model with its data or a constant batch, for trainers.
class ModelProgram final : public nn::ErasedProgram {
 public:
  /// `options` have the sizes that prepare_training filled in. `data` must outlive the program, and with several ranks
  /// give this rank's samples.
  ModelProgram(TrainOptions options, Dataset& data) : options_(std::move(options)), data_(&data) {}
  ModelProgram(Setup setup, KeptBatch batch) : kept_(batch) { options_.setup = std::move(setup); }

  std::unique_ptr<nn::ProgramRun> make(memory::Device device) const override;
  nn::BatchOutline outline(std::int64_t step, memory::Device device, std::int64_t micro_batches) const override;
  std::vector<std::string> part_names() const override { return {""}; }
  bool evaluates() const override { return data_ != nullptr; }
  bool cuts_batches() const override { return true; }

 private:
  class Run;
  friend class Training;
  TrainOptions options_;
  Dataset* data_ = nullptr;  // null for a constant batch
  KeptBatch kept_ = KeptBatch::zeros;
};

/// The trainer options of a run. Throws ValueError for an unknown schedule or a warm-up longer than the steps, and as
/// counted_steps does.
nn::TrainerOptions trainer_options(const TrainOptions& options, memory::Device device);

struct TrainingProgram {
  ModelProgram named;
  nn::TrainerOptions chosen;
};

/// A named model's run: model, optimizer and random numbers on one device, all allocated from the resource in force.
class Training final : private TrainingProgram, public nn::TrainerRun {
 public:
  /// Trains on `data` and follows `plan`. Throws as trainer_options, make_model and make_optimizer do.
  Training(const TrainOptions& options, Dataset& data, memory::Device device, const nn::Plan& plan = {},
           std::int64_t first_step = 0);
  /// Trains on a constant batch.
  Training(const Setup& setup, KeptBatch batch, memory::Device device);

  Model& model();
  optim::Optimizer& optimizer() { return program().optimizer(0); }
  dist::Communicator::Volume volume() override;
  /// Whether the model can generate text: it predicts next tokens.
  bool can_sample();
  /// Tokens generated after token 0, once all steps of a run with TrainOptions::sample are done.
  const std::vector<std::int64_t>& sample();
  /// Null for one rank.
  dist::DataParallel* parallel() { return program().parallel(); }
  nn::RankFiles rank_files() { return program().rank_files(); }

 private:
  ModelProgram::Run& run();
};

/// Complete options (sizes, the number of micro-batches), the opened data and the plan.
struct PreparedTraining {
  TrainOptions options;
  std::unique_ptr<Dataset> data;
  bool is_text = false;
  std::int64_t first_step = 0;  ///< > 0 when resumed
  std::string recipe_change;    ///< since the checkpoint that the run resumes from (models/training/recipe.h)
  nn::Plan plan;                ///< of the run, evaluations included; without a budget it keeps everything
  PackedBytes packing;          ///< of the plan
  std::size_t nodes = 0;        ///< recorded in a step, or in one of several micro-batches
  bool is_steady = true;        ///< the dry run's last two steps left the same arena: further ones need no more
  std::string cost_model = {};  ///< source of the plan's times, if a plan was searched
  std::vector<dist::Trait> traits = {};  ///< that several ranks must share (models/training/recipe.h)
};

/// Checks everything that can be checked before training: names, sizes, data, the checkpoint to resume from, and the
/// folders to write to; then plans the run. The plan's time_overhead is relative to a step without techniques that
/// keeps everything (plain_step_seconds). Throws Error, among them BudgetError, which names the effect of further
/// techniques, and on all ranks ValueError if they were started differently (dist/alike.h). Writes nothing but `times`
/// when measuring. It calls open_training, require_alike and plan_training.
PreparedTraining prepare_training(TrainOptions options);
/// All checks of one rank, which waits for no other.
PreparedTraining open_training(TrainOptions options);
/// Compares the ranks, after open_training on each. Throws the same ValueError on all; does nothing on one rank.
void require_alike(const PreparedTraining& prepared);
void plan_training(PreparedTraining& prepared);

/// The run for a planner: two steps, an evaluation, a third step if evaluations come in between, and a sample. A real
/// run repeats these. `prepared` must outlive it.
nn::MakeRun training_program(const PreparedTraining& prepared);
/// The run under another plan, which must outlive it, too.
nn::MakeRun training_program(const PreparedTraining& prepared, const nn::Plan& plan);

/// Called before the first step with the run's memory resources, so that callers can watch them.
using TrainWatcher = std::function<void(const memory::Stack& stack)>;

struct TrainReport : nn::RunReport {
  std::int64_t parameters = 0;
  std::int64_t trained_parameters = 0;  ///< of `parameters`; only the adapters', if there are any
  std::int64_t first_step = 0;          ///< steps of the run that it resumes
  double clip_norm = 0;                 ///< that gradients were clipped to; 0 without clipping
  std::string optimizer;
  std::vector<std::string> full_state;  ///< parameters with f32 state, where the others' is narrow
  std::size_t offloaded_bytes = 0;      ///< of saved tensors, in a step
  PackedBytes packing;                  ///< of the plan
  double time_overhead = 0;             ///< of the plan, by `cost_model`
  std::string cost_model;               ///< PreparedTraining::cost_model
  std::string sample;
};

/// Trains in a separate arena, which refuses to grow beyond the budget, and writes the files of the options; see
/// nn/trainer/training_loop.h for the files after a failure. Writes weights and draws a sample only if all steps
/// complete. On the cpu it first compares the run's need with the machine's limits for this process
/// (memory/process/host_limits.h). Throws as the parts of prepare_training do; OutOfMemory, before the first step if
/// the run does not fit; FileError.
TrainReport train(const PreparedTraining& prepared, const nn::TrainObserver& observer = {},
                  const TrainWatcher& watcher = {}, const nn::TrainControl& control = {});

}  // namespace thimble::models
