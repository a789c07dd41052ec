// Experiment: a GPT and a ResNet train, inside memory that was predicted.

#include <thimble/bench/experiments/runs.h>

namespace thimble::bench {
namespace training_detail {

struct Case {
  const char* title;
  models::TrainOptions options;
};

models::TrainOptions text_case(const ExperimentOptions& options) {
  models::TrainOptions train = text_training(
      options, "char-gpt", {.layers = 4, .heads = 4, .width = 128, .sequence = 64, .batch = 12}, 200, 2000);
  train.setup.rate = 1e-3;
  train.min_rate = 1e-4;
  return train;
}

models::TrainOptions image_case(const ExperimentOptions& options) {
  models::TrainOptions train = generated_training(options, "resnet18", 200, 1000);
  train.setup.batch = 16;
  train.setup.sizes.width = 16;
  train.setup.rate = 0.02;
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
  experiment.columns = loss_columns(3);
  experiment.columns.insert(experiment.columns.begin(), {"loss_first", "first loss", report::Unit::plain, 3});
  experiment.columns.push_back({"accuracy", "accuracy", report::Unit::percent, 1});
  experiment.columns.push_back({"ms_per_step", "ms per step", report::Unit::milliseconds, 1});
  report::Plot plot;
  plot.name = "loss";
  plot.title = "Training loss";
  plot.caption = "Smoothed over a twentieth of the run.";
  plot.x = {"share of the run", report::Unit::percent, report::Scale::linear, true};
  plot.y = {"loss", report::Unit::plain, report::Scale::linear, true};
  for (const Case& one : {Case{"char-gpt on generated text", text_case(options)},
                          Case{"resnet18 on generated images", image_case(options)}}) {
    options.progress(std::string("training: ") + one.title + ", " + std::to_string(one.options.steps) + " steps");
    const models::PreparedTraining prepared = prepare_training(one.options);
    report::Series series{one.title, report::Role::other, {}, one.title};
    const std::int64_t window = std::max<std::int64_t>(1, one.options.steps / 20);
    double sum = 0;
    const models::TrainReport result = train(prepared, [&](const nn::Progress& progress) {
      sum += progress.loss;
      if (progress.step % window != 0) return;
      const double share = static_cast<double>(progress.step) / static_cast<double>(one.options.steps);
      series.points.push_back({share, sum / static_cast<double>(window)});
      sum = 0;
    });
    plot.series.push_back(series);
    report::Row row = training_row({{"model", one.options.setup.model},
                                    {"batch", one.options.setup.batch},
                                    {"steps", one.options.steps},
                                    {"parameters", result.parameters}},
                                   result);
    row.numbers.emplace_back("loss_first", result.loss_first);
    row.numbers.emplace_back("ms_per_step", result.ms_per_step);
    if (result.evaluation && result.evaluation->accuracy)
      row.numbers.emplace_back("accuracy", *result.evaluation->accuracy);
    experiment.rows.push_back(row);
  }
  experiment.plots.push_back(plot);
  std::size_t learned = 0;
  for (const report::Row& row : experiment.rows) {
    learned += *report::find_number(row, "loss_last") < 0.9 * *report::find_number(row, "loss_first");
  }
  experiment.verdict = "The loss fell by more than a tenth in " + std::to_string(learned) + " of " +
                       std::to_string(experiment.rows.size()) + " runs; " + equal_rows(experiment) + ".";
  return experiment;
}

}  // namespace thimble::bench
