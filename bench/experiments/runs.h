#pragma once
// What experiments that train have in common: how a run is set up, and its row of the table.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/process_row.h>
#include <thimble/models/training/training.h>

namespace thimble::bench {

/// A transformer over tokens without dropout.
struct TextSizes {
  std::int64_t layers = 2, heads = 2, width = 64, sequence = 32, batch = 8;
};

/// Training of `model` on generated text or images: `steps` steps (`is_quick`: `quick_steps`) at a rate that rises for
/// a tenth of them and falls as a cosine.
models::TrainOptions generated_training(const ExperimentOptions& options, const std::string& model,
                                        std::int64_t quick_steps, std::int64_t steps);
models::TrainOptions text_training(const ExperimentOptions& options, const std::string& model, const TextSizes& sizes,
                                   std::int64_t quick_steps, std::int64_t steps);

/// A run whose saved tensors are all packed to `saved`, as far as they can be (nn/fit/pack_all.h); empty: they are
/// kept.
models::PreparedTraining prepare_packed(const models::TrainOptions& options, const std::string& saved);

/// The plan of prepare_packed for a run; one that keeps everything when `saved` is empty.
nn::Plan packing_plan(const nn::MakeRun& make, Device device, const std::string& saved);

/// The columns "loss_last" and "validation_loss", with so many digits, which training_row fills.
std::vector<report::Column> loss_columns(int decimals);

/// NaN: the run ended before its first evaluation.
double validation_loss(const models::TrainReport& result);

/// Predicted and measured peaks of a run, and its losses.
report::Row training_row(std::vector<report::Setting> config, const models::TrainReport& result);

/// "predicted == measured in 12 of 12 runs".
std::string equal_rows(const report::Experiment& experiment, const std::string& rows = "runs");

/// "+15.0", "-3.2".
std::string with_sign(double value, int decimals);

}  // namespace thimble::bench
