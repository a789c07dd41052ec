#pragma once
// How runs of experiments are set up, and their figures.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/models/training/training.h>

namespace thimble::bench {

models::Setup setup_of(const std::string& model, std::int64_t batch, const models::ModelOptions& sizes = {},
                       const std::string& optimizer = {});

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
nn::Plan packing_plan(const nn::MakeRun& make, memory::Device device, const std::string& saved);

/// `make` whose runs follow the plan.
nn::MakeRun planned_run(const nn::MakeRun& make, const nn::Plan& plan);

/// Forward and backward of the mean of a convnet's outputs, with an update that has no state: "U-Net" on images of
/// 208 x 304, "MobileNet-V2", "DenseNet-121" or "VGG-16" on ones of 224 x 224.
nn::MakeRun run_of_net(const std::string& net, std::int64_t batch);

/// NaN: the run ended before its first evaluation.
double validation_loss(const models::TrainReport& result);

/// Predicted and measured peaks of a run, and its numbers "loss_last" and "validation_loss".
Figures training_figures(const models::TrainReport& result);

/// Trains on ranks that are threads; the report of rank 0.
models::TrainReport run_on_ranks(const models::TrainOptions& options);

/// Bytes that every rank's plan fits: the largest of the ranks' smallest budgets.
std::size_t least_budget(models::TrainOptions options);

/// Sums over the ranks; each rank's bytes are compared as well.
Figures rank_figures(const models::TrainReport& result, std::int64_t steps);

/// A temporary folder that is removed with this.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// 0.123 as "12.3 %".
std::string percent(double share);
/// "+15.0", "-3.2".
std::string with_sign(double value, int decimals);

}  // namespace thimble::bench
