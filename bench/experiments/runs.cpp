#include <thimble/bench/experiments/runs.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include <stdlib.h>

#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/dist/threads.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/pack_all.h>

namespace thimble::bench {

models::Setup setup_of(const std::string& model, std::int64_t batch, const models::ModelOptions& sizes,
                       const std::string& optimizer) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  setup.sizes = sizes;
  setup.optimizer = optimizer;
  return setup;
}

models::TrainOptions generated_training(const ExperimentOptions& options, const std::string& model,
                                        std::int64_t quick_steps, std::int64_t steps) {
  models::TrainOptions train;
  train.setup.model = model;
  train.data = "synthetic";
  train.device = options.device;
  train.steps = options.is_quick ? quick_steps : steps;
  train.schedule = "cosine";
  train.warmup = train.steps / 10;
  return train;
}

models::TrainOptions text_training(const ExperimentOptions& options, const std::string& model, const TextSizes& sizes,
                                   std::int64_t quick_steps, std::int64_t steps) {
  models::TrainOptions train = generated_training(options, model, quick_steps, steps);
  train.setup.batch = sizes.batch;
  train.setup.sizes = {
      .sequence = sizes.sequence, .layers = sizes.layers, .heads = sizes.heads, .width = sizes.width, .dropout = 0};
  return train;
}

nn::Plan packing_plan(const nn::MakeRun& make, memory::Device device, const std::string& saved) {
  if (saved.empty()) return {};
  nn::SpillPolicy spilling;
  spilling.packs = true;
  spilling.packed = parse_dtype(saved);
  return nn::packed_plan(make, device, spilling);
}

models::PreparedTraining prepare_packed(const models::TrainOptions& options, const std::string& saved) {
  models::PreparedTraining prepared = prepare_training(options);
  if (!saved.empty()) prepared.plan = packing_plan(training_program(prepared), options.device, saved);
  return prepared;
}

nn::MakeRun planned_run(const nn::MakeRun& make, const nn::Plan& plan) {
  return [make, plan](memory::Device device) {
    std::unique_ptr<nn::TrainingRun> run = make(device);
    plan.apply(run->options(), device);
    return run;
  };
}

double validation_loss(const models::TrainReport& result) {
  return result.evaluation ? result.evaluation->loss : std::numeric_limits<double>::quiet_NaN();
}

Figures training_figures(const models::TrainReport& result) {
  return {.predicted = result.predicted_peak_bytes,
          .measured = result.measured_peak_bytes,
          .numbers = {{"loss_last", result.loss_last}, {"validation_loss", validation_loss(result)}},
          .processes = {{result.predicted_peak_bytes, process_bytes(result)}}};
}

models::TrainReport run_on_ranks(const models::TrainOptions& options) {
  models::TrainReport report;
  dist::run_ranks(options.setup.ranks, [&](dist::Communicator& ranks) {
    models::TrainOptions own = options;
    own.ranks = &ranks;
    own.setup.rank = ranks.rank();
    models::TrainReport of_rank = train(prepare_training(own));
    if (ranks.rank() == 0) report = std::move(of_rank);
  });
  return report;
}

std::size_t least_budget(models::TrainOptions options) {
  std::size_t least = 0;
  options.budget_bytes = 1;
  for (const std::vector<int>& alike : models::alike_ranks(options.setup, options.device)) {
    options.setup.rank = alike.front();
    try {
      prepare_training(options);
    } catch (const nn::BudgetError& error) {
      least = std::max(least, error.minimum_bytes());
    }
  }
  return least;
}

Figures rank_figures(const models::TrainReport& result, std::int64_t steps) {
  Figures figures{.no_process = "its ranks are threads of one process"};
  std::size_t predicted = 0, measured = 0;
  double sent = 0;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    const auto& rank = result.ranks[r];
    predicted += rank.predicted_peak_bytes;
    measured += rank.measured_peak_bytes;
    figures.compared.push_back({"rank " + std::to_string(r), rank.predicted_peak_bytes, rank.measured_peak_bytes});
    sent += static_cast<double>(rank.sent_bytes);
  }
  figures.predicted = predicted;
  figures.measured = measured;
  figures.numbers = {{"sent", sent / static_cast<double>(steps)}, {"loss_last", result.loss_last}};
  return figures;
}

Folder::Folder() : path_((std::filesystem::temp_directory_path() / "thimble-rows-XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) throw FileError(path_, 0, "cannot make this folder");
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string percent(double share) { return report::format_quantity(share, Unit::percent, 1); }

std::string with_sign(double value, int decimals) {
  return (value < 0 ? "" : "+") + report::format_fixed(value, decimals);
}

}  // namespace thimble::bench
