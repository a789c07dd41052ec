#pragma once
// Training a named model, on data by path, in a number of bytes (models/models.h has it all):
//
//   models::TrainOptions options;
//   options.setup.model = "char-gpt";  // models::model_list() has them all
//   options.setup.sizes.width = 96;    // else the model's own
//   options.data = "synthetic";        // or a path: see open_dataset
//   options.steps = 6;
//   options.budget_bytes = static_cast<std::size_t>(parse_size("64 MiB"));
//   options.save = folder + "/run";
//   options.log = folder + "/curves";
//   const models::PreparedTraining prepared = models::prepare_training(options);
//   std::printf("%zu bytes\n", prepared.plan.peak_bytes);  // before the first step; the arena takes as many
//   const models::TrainReport report =
//       models::train(prepared, [](const nn::Progress& p) { std::printf("loss %f\n", p.loss); });
//
// A run resumes from that checkpoint for more steps, with the bits of a run that was never interrupted:
//
//   options.resume = options.save;
//   options.steps = 9;
//   const models::TrainReport rest = models::train(models::prepare_training(options));
//
// The program that a dry run predicts is the one that trains: the same class, on another device. nn/trainer/trainer.h
// trains your own model, without a name.

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
  std::int64_t steps = 100;           ///< in all: a resumed run does the remaining ones
  std::string schedule = "constant";  ///< constant; cosine, down to min_rate; step, x 0.1 at every third of the steps
  std::int64_t warmup = 0;            ///< steps of linear rise before that
  double min_rate = 0;                ///< the rate never falls below it after the warm-up
  std::int64_t eval_every = 0;        ///< evaluate after every so many steps; 0: only at the end
  std::int64_t eval_batches = 16;     ///< batches of an evaluation; 0: the whole validation part
  std::int64_t sample = 0;            ///< tokens that a text model generates at the end
  std::string save;                   ///< a checkpoint, at the end and every `save_every` steps
  std::int64_t save_every = 0;        ///< 0: only at the end
  std::int64_t keep = 1;              ///< checkpoints that stay: the newest, and older ones as `<save>.step-K`
  std::string resume;                 ///< a checkpoint to resume from
  std::string save_weights;           ///< only the parameters, at the end, in the model's public layout
  std::string save_adapters;          ///< a folder of PEFT's for the adapters, at the end (nn/lora/adapter_files.h)
  std::string log;                    ///< a folder for TensorBoard
  bool overwrites = false;            ///< files of other kinds with these names may be replaced
  std::string plan;                   ///< a file of nn::write_plan: followed without planning
  bool is_strict = false;             ///< a step that leaves its plan is an error
  bool captures_steps = false;        ///< on a CUDA device steps are captured and replayed (nn/step/captured_step.h)
  std::vector<Output> other_outputs = {};  ///< that the caller writes: their names are checked beside these
  /// The ranks of a setup of several: all call prepare_training and train with the same options except `setup.rank`.
  /// They must live as long as the run.
  dist::Communicator* ranks = nullptr;
};

/// The samples of a batch that the setup's rank gets.
BatchShare share_of(const Setup& setup);

/// The learning rate of a step (from 0), of a run whose optimizer begins with `rate`. Throws ValueError for an unknown
/// schedule or a warm-up longer than the steps.
double rate_at(const TrainOptions& options, double rate, std::int64_t step);

/// One constant batch, of zeros or of random values: for dry runs and timing. On a dry device both are zeros.
enum class KeptBatch : std::uint8_t { zeros, random };

/// A named model, with its data or a constant batch, as trainers run it.
class ModelProgram final : public nn::ErasedProgram {
 public:
  /// `options` have the sizes that `prepare` filled in; `data` must outlive it. With several ranks `data` is set to
  /// this one's samples.
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
  Dataset* data_ = nullptr;  // null: the batch is constant
  KeptBatch kept_ = KeptBatch::zeros;
};

/// The options of a trainer that trains so. Throws ValueError for an unknown schedule or a warm-up longer than the
/// steps, and what check_techniques throws.
nn::TrainerOptions trainer_options(const TrainOptions& options, memory::Device device);

struct TrainingProgram {
  ModelProgram named;
  nn::TrainerOptions chosen;
};

/// A named model's run: model, optimizer and random numbers on one device. Everything takes its bytes from the resource
/// in force.
class Training final : private TrainingProgram, public nn::TrainerRun {
 public:
  /// The run of ModelProgram's first form, which follows `plan`. Throws what make_model and make_optimizer throw.
  Training(const TrainOptions& options, Dataset& data, memory::Device device, const nn::Plan& plan = {},
           std::int64_t first_step = 0);
  /// Of the second.
  Training(const Setup& setup, KeptBatch batch, memory::Device device);

  Model& model();
  optim::Optimizer& optimizer() { return program().optimizer(0); }
  dist::Communicator::Volume volume() override;
  /// Whether the model can generate text: it is one of the GPT family.
  bool can_sample();
  /// Tokens that the model generated after token 0, after all steps of a run that wants them.
  const std::vector<std::int64_t>& sample();
  /// The ranks, with the data for files; null: this is the only one.
  dist::DataParallel* parallel() { return program().parallel(); }
  nn::RankFiles rank_files() { return program().rank_files(); }

 private:
  ModelProgram::Run& run();
};

/// Complete options (sizes, the number of micro-batches), and the opened data.
struct PreparedTraining {
  TrainOptions options;
  std::unique_ptr<Dataset> data;
  bool is_text = false;
  std::int64_t first_step = 0;  ///< > 0 when resumed
  std::string recipe_change;    ///< differences to the checkpoint that the run resumed from: models/training/recipe.h
  nn::Plan plan;                ///< of the run, evaluations included; keeps everything without a budget
  PackedBytes packing;          ///< of the plan
  std::size_t nodes = 0;        ///< of a step's recording, or of one of several micro-batches
  bool is_steady = true;        ///< the dry run's last two steps left the arena as it was: further ones need no more
  std::string cost_model = {};  ///< that the plan's times come from; empty: nothing was planned
  std::vector<dist::Trait> traits = {};  ///< equal on all of several ranks (models/training/recipe.h)
};

/// Checks everything that can be checked before the first byte is trained on or written: names, sizes, data, the
/// checkpoint to resume from, and the folders to write to; and plans the run. The plan's time_overhead is over a step
/// with no technique switched on that keeps everything (plain_step_seconds). Throws Error, also BudgetError, whose
/// message names the effect of further techniques; nothing is written. Ranks that were started differently
/// (dist/alike.h) are a ValueError on all of them. It calls these three in turn.
PreparedTraining prepare_training(TrainOptions options);
/// All but the plan: ranks do not wait for each other.
PreparedTraining open_training(TrainOptions options);
/// On several ranks, after all have opened it. Throws ValueError, the same on all; does nothing on one rank.
void require_alike(const PreparedTraining& prepared);
void plan_training(PreparedTraining& prepared);

/// The run as a planner sees it: two steps, an evaluation, a further step if evaluations come in between, and a sample.
/// A real run repeats these. `prepared` must outlive it.
nn::MakeRun training_program(const PreparedTraining& prepared);
/// The same under another plan than its own, which must outlive it, too.
nn::MakeRun training_program(const PreparedTraining& prepared, const nn::Plan& plan);

/// Before the first step: the resources of the run's bytes, so that callers can watch them.
using TrainWatcher = std::function<void(const memory::Stack& stack)>;

struct TrainReport : nn::RunReport {
  std::int64_t parameters = 0;
  std::int64_t trained_parameters = 0;  ///< of those; with adapters theirs
  std::int64_t first_step = 0;          ///< steps done before the run
  double clip_norm = 0;                 ///< that gradients were clipped to; 0: they were not
  std::string optimizer;                ///< its name
  std::vector<std::string> full_state;  ///< parameters whose state is f32 though the others' is narrow
  std::size_t offloaded_bytes = 0;      ///< of saved tensors, per step
  PackedBytes packing;                  ///< of the plan
  double time_overhead = 0;             ///< of the plan, by the cost model
  std::string cost_model;               ///< that it comes from; empty: nothing was planned
  std::string sample;
};

/// Trains in a separate arena, which refuses to grow beyond the budget, and writes the files of the options; see
/// nn/trainer/training_loop.h for the files after a failure. Weights and a sample are made only at a complete end. On
/// the cpu the run's need is first compared with the machine's limits for this process (memory/process/host_limits.h).
/// Throws what prepare_training's parts throw; OutOfMemory, before the first step if there is no room for it;
/// FileError.
TrainReport train(const PreparedTraining& prepared, const nn::TrainObserver& observer = {},
                  const TrainWatcher& watcher = {}, const nn::TrainControl& control = {});

}  // namespace thimble::models
