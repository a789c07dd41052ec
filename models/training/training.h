#pragma once
// Training a named model, on data by path, in a given number of bytes (include models/models.h):
//
//   models::RunOptions options;
//   options.setup.model = "char-gpt";  // any name of models::model_list()
//   options.setup.sizes.width = 96;    // defaults to the model's
//   options.data = "synthetic";        // or a path: see open_dataset
//   options.steps = 6;
//   options.budget_bytes = static_cast<std::size_t>(parse_size("64 MiB"));
//   options.save = folder + "/run";
//   options.log = folder + "/curves";
//   models::Engine engine(options);
//   std::printf("%zu bytes\n", engine.plan().peak_bytes);  // before the first step; the arena will take exactly this
//   const models::TrainReport report = engine.run([](const nn::Progress& p) { std::printf("loss %f\n", p.loss); });
//
// A run resumes from that checkpoint, with the bits of a run that was never interrupted:
//
//   options.resume = options.save;
//   options.steps = 9;
//   const models::TrainReport rest = models::Engine(options).run();
//
// The dry run predicts the program that trains: the same class on another device. nn/trainer/trainer.h trains your own
// models.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/dist/alike.h>
#include <thimble/memory/stack.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/models/training/run_options.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/precision/gradient_report.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::models {

/// The setup's share of each batch.
BatchShare share_of(const Setup& setup);

/// The learning rate of step `step` (from 0), where `rate` is the optimizer's. Throws ValueError for an unknown
/// schedule or a warm-up longer than the steps.
double rate_at(const RunOptions& options, double rate, std::int64_t step);

/// A constant batch for dry runs and timing; zeros on a dry device.
enum class KeptBatch : std::uint8_t { zeros, random };

/// A named model with its data or a constant batch, for trainers.
class ModelProgram final : public nn::AnyProgram {
 public:
  /// `options` have the sizes that Engine filled in. `data` must outlive the program, and with several ranks
  /// give this rank's samples.
  ModelProgram(RunOptions options, Dataset& data) : options_(std::move(options)), data_(&data) {}
  ModelProgram(Setup setup, KeptBatch batch) : kept_(batch) { options_.setup = std::move(setup); }

  std::unique_ptr<nn::ProgramRun> make(memory::Device device) const override;
  nn::BatchOutline outline(std::int64_t step, memory::Device device, std::int64_t micro_batches) const override;
  std::vector<std::string> part_names() const override { return {""}; }
  bool evaluates() const override { return data_ != nullptr; }
  bool cuts_batches() const override { return true; }

 private:
  class Run;
  friend class Training;
  RunOptions options_;
  Dataset* data_ = nullptr;  // null for a constant batch
  KeptBatch kept_ = KeptBatch::zeros;
};

/// The trainer options of a run. Throws ValueError for an unknown schedule or a warm-up longer than the steps, and as
/// counted_steps does.
nn::TrainerOptions trainer_options(const RunOptions& options, memory::Device device);

struct TrainingProgram {
  ModelProgram named;
  nn::TrainerOptions chosen;
};

/// A named model's run: model, optimizer and random numbers on one device, all allocated from the resource in force.
class Training final : private TrainingProgram, public nn::TrainerRun {
 public:
  /// Trains on `data` and follows `plan`. Throws as trainer_options, make_model and make_optimizer do.
  Training(const RunOptions& options, Dataset& data, memory::Device device, const nn::Plan& plan = {},
           std::int64_t first_step = 0);
  /// Trains on a constant batch.
  Training(const Setup& setup, KeptBatch batch, memory::Device device);

  Model& model();
  optim::Optimizer& optimizer() { return program().optimizer(0); }
  dist::Communicator::Volume volume() override;
  /// Whether the model can generate text: it predicts next tokens.
  bool can_sample();
  /// Tokens generated after token 0, once all steps of a run with RunOptions::sample are done.
  const std::vector<std::int64_t>& sample();
  /// Null for one rank.
  dist::DataParallel* parallel() { return program().parallel(); }
  nn::RankFiles rank_files() { return program().rank_files(); }

 private:
  ModelProgram::Run& run();
};

/// The plan of a run, evaluations included. Without a budget it keeps everything. Its time_overhead is relative to a
/// step without techniques that keeps everything (plain_step_seconds).
struct RunPlan : nn::Plan {
  PackedBytes packing;
  std::size_t nodes = 0;        ///< recorded in a step, or in one of several micro-batches
  bool is_steady = true;        ///< the dry run's last two steps left the same arena: further ones need no more
  std::string cost_model = {};  ///< source of the plan's times, if the plan was searched
};

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
  std::string cost_model;               ///< RunPlan::cost_model
  std::string sample;
};

/// The run of a named model: its checks, its plan, its steps and its report.
class Engine {
 public:
  /// Checks everything on this rank that can be checked before training: names, sizes, data, the checkpoint to resume
  /// from, and the folders to write to. Opens the data, writes nothing, and waits for no other rank. Throws Error.
  explicit Engine(RunOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The options with all sizes filled in; once planned, also with the number of micro-batches and the arena's budget.
  const RunOptions& options() const noexcept { return options_; }
  Dataset& data() const noexcept { return *data_; }
  /// Replaces the opened data by the result of `change`, with batches of the same shapes: augmented, say.
  void change_data(const std::function<std::unique_ptr<Dataset>(std::unique_ptr<Dataset>)>& change) {
    data_ = change(std::move(data_));
  }
  std::int64_t first_step() const noexcept { return first_step_; }  ///< > 0 when resumed
  /// Changes since the checkpoint that the run resumes from (models/training/recipe.h); empty without any.
  const std::string& recipe_change() const noexcept { return recipe_change_; }

  /// Throws the same ValueError on all ranks if they were started differently (dist/alike.h), in these traits or in
  /// `more`. Does nothing on one rank. plan() calls it unless the caller did.
  void require_alike(const std::vector<dist::Trait>& more = {});
  /// Plans the run at the first call. Throws Error, among them BudgetError, which names the effect of further
  /// techniques. Writes nothing but `times` when measuring.
  const RunPlan& plan();
  /// Follows this plan from now on, as experiments do.
  void follow(nn::Plan plan);
  /// Makes runs for a planner, which end before the engine: two steps, an evaluation, a third step if evaluations come
  /// in between, and a sample. A real run repeats these. They follow the plan, once there is one, or `plan`.
  nn::MakeRun runs() const;
  nn::MakeRun runs(const nn::Plan& plan) const;
  /// Determines the process's bytes outside the arena, for the planned run on the cpu.
  memory::OutsideFacts outside_facts();

  /// Trains in a separate arena, which refuses to grow beyond the budget, and writes the files of the options; see
  /// nn/trainer/training_loop.h for the files after a failure. Writes weights and draws a sample only if all steps
  /// complete. On the cpu it first compares the run's need with the machine's limits for this process
  /// (memory/process/host_limits.h). Throws as plan() does; OutOfMemory, before the first step if the run does not fit;
  /// FileError.
  TrainReport run(const nn::TrainObserver& observer = {}, const TrainWatcher& watcher = {},
                  const nn::TrainControl& control = {});
  /// Runs `options.steps` steps and the evaluation twice, keeping everything and under the plan, on the same data
  /// (nn/certify/certify.h). Throws ValueError without a plan, and if the plan may round (`allows_lossy`).
  nn::Certificate certify();
  /// Compares the gradients of the run's next batch under its plan with and without packing, at the parameters that the
  /// run begins with, from its checkpoint if it resumes. Uses a separate arena, outside any budget. Halves a dynamic
  /// loss scale until all gradients are finite, as training would. Trains and writes nothing. Throws as run() does
  /// before its first step.
  nn::GradientReport packing_gradients();

 private:
  void open();
  nn::PlanSource plan_of_file() const;
  std::size_t measuring_bytes() const;
  memory::OutsideFacts known_facts() const;
  void make_plan();

  RunOptions options_;
  std::unique_ptr<Dataset> data_;
  bool is_text_ = false;
  std::int64_t first_step_ = 0;
  std::string recipe_change_;
  std::vector<dist::Trait> traits_;  // that several ranks must share
  bool is_compared_ = false, is_planned_ = false;
  RunPlan plan_;
};

}  // namespace thimble::models
