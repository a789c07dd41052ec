// Experiment: a GPT and a ResNet train, inside memory that was predicted.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/training.h>

namespace thimble::bench {
namespace training_detail {

struct Case {
  const char* title;
  TrainOptions options;
};

TrainOptions text_case(const ExperimentOptions& options) {
  TrainOptions train;
  train.setup.model = "char-gpt";
  train.setup.batch = 12;
  train.setup.sizes.layers = 4;
  train.setup.sizes.heads = 4;
  train.setup.sizes.width = 128;
  train.setup.sizes.sequence = 64;
  train.setup.sizes.dropout = 0;
  train.setup.rate = 1e-3;
  train.data = "synthetic";
  train.device = options.device;
  train.steps = options.is_quick ? 200 : 2000;
  train.schedule = "cosine";
  train.warmup = train.steps / 20;
  train.min_rate = 1e-4;
  return train;
}

TrainOptions image_case(const ExperimentOptions& options) {
  TrainOptions train;
  train.setup.model = "resnet18";
  train.setup.batch = 16;
  train.setup.sizes.width = 16;
  train.setup.rate = 0.02;
  train.data = "synthetic";
  train.device = options.device;
  train.steps = options.is_quick ? 200 : 1000;
  train.schedule = "cosine";
  train.warmup = train.steps / 20;
  return train;
}

}  // namespace training_detail

report::Experiment training_experiment(const ExperimentOptions& options) {
  using namespace training_detail;
  report::Experiment experiment;
  experiment.name = "training";
  experiment.title = "A GPT and a ResNet train";
  experiment.question = "Do models learn inside the memory that the dry run predicted?";
  experiment.theory =
      "predicted: a dry run of the same program (two steps, an evaluation); measured: what the arena "
      "committed while it trained. Data is generated, so nothing is downloaded.";
  experiment.columns = {{"loss_first", "first loss", report::Unit::plain, 3},
                        {"loss_last", "last loss", report::Unit::plain, 3},
                        {"validation_loss", "validation loss", report::Unit::plain, 3},
                        {"accuracy", "accuracy", report::Unit::percent, 1},
                        {"ms_per_step", "ms per step", report::Unit::milliseconds, 1}};
  report::Plot plot;
  plot.name = "loss";
  plot.title = "Training loss";
  plot.caption = "Smoothed over a twentieth of the run.";
  plot.x = {"share of the run", report::Unit::percent, report::Scale::linear, true};
  plot.y = {"loss", report::Unit::plain, report::Scale::linear, true};
  for (const Case& one : {Case{"char-gpt on generated text", text_case(options)},
                          Case{"resnet18 on generated images", image_case(options)}}) {
    options.progress(std::string("training: ") + one.title + ", " + std::to_string(one.options.steps) + " steps");
    const PreparedTraining prepared = prepare_training(one.options);
    report::Series series{one.title, report::Role::other, {}, one.title};
    const std::int64_t window = std::max<std::int64_t>(1, one.options.steps / 20);
    double sum = 0;
    const TrainReport result = train(prepared, [&](const TrainProgress& progress) {
      sum += progress.loss;
      if (progress.step % window != 0) return;
      const double share = static_cast<double>(progress.step) / static_cast<double>(one.options.steps);
      series.points.push_back({share, sum / static_cast<double>(window)});
      sum = 0;
    });
    plot.series.push_back(series);
    report::Row row;
    row.config = {{"model", one.options.setup.model},
                  {"batch", one.options.setup.batch},
                  {"steps", one.options.steps},
                  {"parameters", result.parameters}};
    row.predicted_bytes = static_cast<std::int64_t>(result.predicted_peak_bytes);
    row.measured_bytes = static_cast<std::int64_t>(result.measured_peak_bytes);
    row.numbers = {{"loss_first", result.loss_first},
                   {"loss_last", result.loss_last},
                   {"validation_loss", result.validation.loss},
                   {"ms_per_step", result.ms_per_step}};
    if (result.validation.accuracy) row.numbers.emplace_back("accuracy", *result.validation.accuracy);
    experiment.rows.push_back(row);
  }
  experiment.plots.push_back(plot);
  const report::Tally tally = report::tally(experiment);
  std::size_t learned = 0;
  for (const report::Row& row : experiment.rows) learned += row.numbers[1].second < 0.9 * row.numbers[0].second;
  experiment.verdict = "The loss fell by more than a tenth in " + std::to_string(learned) + " of " +
                       std::to_string(experiment.rows.size()) + " runs; predicted == measured in " +
                       std::to_string(tally.equal) + " of " + std::to_string(tally.compared) + " runs.";
  return experiment;
}

}  // namespace thimble::bench
