// Experiment: saved tensors and optimizer state in fewer bits, and what that does to gradients and to the loss.

#include <algorithm>
#include <cmath>
#include <memory>

#include <thimble/bench/experiments/runs.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::bench {
namespace eight_bits_detail {

struct Case {
  const char* saved;  // a dtype that all saved tensors are packed to; empty: they are kept
  const char* optimizer;
  DType state = DType::f32;
};

models::TrainOptions options_of(const ExperimentOptions& options, const Case& one) {
  models::TrainOptions train = text_training(options, "char-gpt", {}, 40, 500);
  train.setup.optimizer = one.optimizer;
  train.setup.state = one.state;
  // Not the steepest rate: there two runs that differ by a rounding part ways, whatever it came from.
  if (train.setup.optimizer.starts_with("adamw")) train.setup.rate = 1e-3;
  return train;
}

// The most bytes that are live in a step, by a dry run: a small model's arena is a few granules, whatever it does.
double live_bytes(const models::PreparedTraining& prepared) {
  const nn::MakeRun program = training_program(prepared);
  const nn::MemoryProfile profile = nn::profile_training(dry(prepared.options.device), [&](Device device) {
    std::unique_ptr<nn::TrainingRun> run = program(device);
    prepared.plan.apply(run->options(), device);
    return run;
  });
  return static_cast<double>(profile.peak_live_bytes);
}

// Gradients of the batch after the exact run, with this plan and without.
nn::GradientReport gradients(models::Training& trained, const models::PreparedTraining& prepared) {
  const models::Batch batch =
      prepared.data->batch(prepared.options.steps, prepared.options.device, prepared.options.setup.dtype);
  return nn::compare_gradients(trained.optimizer().parameters(),
                               [&](std::int64_t) { return trained.model().loss(batch); }, {},
                               {.plan = prepared.plan.tape});
}

report::Series errors_by_parameter(const std::string& saved, const nn::GradientReport& report) {
  report::Series series{"saved in " + saved, report::Role::other, {}, saved};
  for (std::size_t i = 0; i < report.parameters.size(); ++i) {
    series.points.push_back({static_cast<double>(i), report.parameters[i].relative_error});
  }
  return series;
}

}  // namespace eight_bits_detail

report::Experiment eight_bits_experiment(const ExperimentOptions& options) {
  using namespace eight_bits_detail;
  report::Experiment experiment;
  experiment.name = "eight-bits";
  experiment.title = "Saved tensors and optimizer state in fewer bits";
  experiment.question = "What do 16 and 8 bits save, and what do they do to gradients and to the loss?";
  experiment.theory =
      "Saved tensors: 2 bytes per value in bf16, 1 + 4 / 64 in 8 bits. State of Adam: 8 bytes per parameter in f32, 4 "
      "in bf16, 2 + 8 / 256 in 8 bits; tensors of fewer than 4096 elements stay in f32. Gradients are those of one "
      "batch after the training of the first row; the cosine is the least of all parameters. Live bytes count blocks "
      "as they were asked for; packed ones are counted before they are packed.";
  experiment.columns = loss_columns(4);
  for (const report::Column& column : {report::Column{"validation_change", "change", report::Unit::percent, 2},
                                       {"gradient_error", "gradient error", report::Unit::percent, 2},
                                       {"least_cosine", "least cosine", report::Unit::plain, 5},
                                       {"live_bytes", "live at most", report::Unit::bytes},
                                       {"packed_bytes", "packed per step", report::Unit::bytes},
                                       {"state_bytes", "optimizer state", report::Unit::bytes},
                                       {"state_per_parameter", "bytes of it per parameter", report::Unit::plain, 3}}) {
    experiment.columns.push_back(column);
  }
  const Case cases[] = {{"", "adamw"},       {"bf16", "adamw"}, {"f16", "adamw"},           {"f8e4m3", "adamw"},
                        {"f8e5m2", "adamw"}, {"i8", "adamw"},   {"", "adamw", DType::bf16}, {"", "adamw8"},
                        {"", "adafactor"},   {"", "momentum"},  {"", "momentum8"},          {"i8", "adamw8"}};
  report::Plot plot;
  plot.name = "gradient-error";
  plot.title = "Relative error of each parameter's gradient";
  plot.caption = "Parameters in the order of the model, from the embeddings to the last norm.";
  plot.x = {"parameter", report::Unit::plain, report::Scale::linear, true};
  plot.y = {"relative error", report::Unit::percent, report::Scale::linear, true};
  const memory::Stack stack = memory::make_resource(options.device);
  const ResourceScope scope(stack.top);
  std::unique_ptr<models::PreparedTraining> exact;
  std::unique_ptr<models::Training> trained;
  double adamw = 0, momentum = 0, least = 1, worst_loss = 0;
  for (const Case& one : cases) {
    const models::TrainOptions train_options = options_of(options, one);
    options.progress("eight-bits: saved tensors in " + std::string(*one.saved ? one.saved : "f32") + ", " +
                     one.optimizer + " with " + std::string(to_string(one.state)));
    const models::PreparedTraining prepared = prepare_packed(train_options, one.saved);
    const models::TrainReport result = train(prepared);
    if (!trained) {  // the first case: its parameters are those that gradients are compared at
      exact = std::make_unique<models::PreparedTraining>(prepare_training(train_options));
      trained = std::make_unique<models::Training>(exact->options, *exact->data, options.device);
      for (std::int64_t step = 0; step < train_options.steps; ++step) trained->step(step);
    }
    const bool is_momentum = std::string(one.optimizer).starts_with("momentum");
    double& base = is_momentum ? momentum : adamw;
    if (base == 0) base = validation_loss(result);
    const double change = validation_loss(result) / base - 1;
    report::Row row = training_row({{"saved", std::string(*one.saved ? one.saved : "f32")},
                                    {"optimizer", std::string(one.optimizer)},
                                    {"state", std::string(to_string(optimizer_state(train_options.setup, true)))},
                                    {"steps", train_options.steps}},
                                   result);
    row.numbers.emplace_back("validation_change", change);
    if (*one.saved) {
      const nn::GradientReport report = gradients(*trained, prepared);
      row.numbers.emplace_back("gradient_error", report.all.relative_error);
      row.numbers.emplace_back("least_cosine", report.smallest_cosine());
      least = std::min(least, report.smallest_cosine());
      if (std::string(one.optimizer) == "adamw") plot.series.push_back(errors_by_parameter(one.saved, report));
    }
    const auto optimizer = make_optimizer(train_options.setup, trained->model());
    row.numbers.emplace_back("live_bytes", live_bytes(prepared));
    row.numbers.emplace_back("packed_bytes", static_cast<double>(prepared.plan.packed_bytes));
    row.numbers.emplace_back("state_bytes", static_cast<double>(optimizer->state_bytes()));
    row.numbers.emplace_back("state_per_parameter",
                             static_cast<double>(optimizer->state_bytes()) / static_cast<double>(result.parameters));
    if (std::string(one.optimizer) != "adafactor") worst_loss = std::max(worst_loss, std::fabs(change));
    experiment.rows.push_back(row);
  }
  experiment.plots.push_back(plot);
  char text[160];
  std::snprintf(text, sizeof text,
                "Losses differ by at most %.2f %% from those of the same optimizer in f32 (adafactor is another one), "
                "the least cosine of a gradient is %.5f; ",
                100 * worst_loss, least);
  experiment.verdict = text + equal_rows(experiment) + ".";
  return experiment;
}

}  // namespace thimble::bench
