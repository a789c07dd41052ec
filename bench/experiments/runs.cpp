#include <thimble/bench/experiments/runs.h>

#include <limits>
#include <utility>

#include <thimble/bench/report/text.h>
#include <thimble/nn/fit/pack_all.h>

namespace thimble::bench {

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
  train.setup.sizes.layers = sizes.layers;
  train.setup.sizes.heads = sizes.heads;
  train.setup.sizes.width = sizes.width;
  train.setup.sizes.sequence = sizes.sequence;
  train.setup.sizes.dropout = 0;
  return train;
}

nn::Plan packing_plan(const nn::MakeRun& make, Device device, const std::string& saved) {
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

std::vector<report::Column> loss_columns(int decimals) {
  return {{"loss_last", "last loss", report::Unit::plain, decimals},
          {"validation_loss", "validation loss", report::Unit::plain, decimals}};
}

double validation_loss(const models::TrainReport& result) {
  return result.evaluation ? result.evaluation->loss : std::numeric_limits<double>::quiet_NaN();
}

report::Row training_row(std::vector<report::Setting> config, const models::TrainReport& result) {
  report::Row row;
  row.config = std::move(config);
  row.predicted_bytes = static_cast<std::int64_t>(result.predicted_peak_bytes);
  row.measured_bytes = static_cast<std::int64_t>(result.measured_peak_bytes);
  add_process(row, result.predicted_peak_bytes, process_bytes(result));
  row.numbers = {{"loss_last", result.loss_last}, {"validation_loss", validation_loss(result)}};
  return row;
}

std::string equal_rows(const report::Experiment& experiment, const std::string& rows) {
  const report::Tally tally = report::tally(experiment);
  return "predicted == measured in " + std::to_string(tally.equal) + " of " + std::to_string(tally.compared) + " " +
         rows;
}

std::string with_sign(double value, int decimals) {
  return (value < 0 ? "" : "+") + report::format_fixed(value, decimals);
}

}  // namespace thimble::bench
