// Experiment: is a net in 8 bits 4 times smaller, and does it keep 98 % of its accuracy?

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include <stdlib.h>

#include <thimble/bench/experiments/precision/precision.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/timing/processor_time.h>
#include <thimble/core/error.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/quantizing.h>

namespace thimble::bench {
namespace precision_int8_detail {

namespace fs = std::filesystem;
using nn::quant::Calibrator;

constexpr double claimed_ratio = 4, claimed_accuracy = 0.98;

/// For the nets' files; gone with all that is in it.
class Folder {
 public:
  Folder() : path_((fs::temp_directory_path() / "thimble-int8-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw FileError(path_, 0, "no folder can be made there");
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return (fs::path(path_) / name).string(); }

 private:
  std::string path_;
};

// A residual net that reads generated images, and its file.
models::TrainOptions trained(const ExperimentOptions& options, const std::string& file) {
  models::TrainOptions train_options = generated_training(options, "resnet18", 150, 300);
  train_options.setup.batch = options.is_quick ? 16 : 32;
  train_options.setup.sizes.width = 8;
  train_options.setup.sizes.image = options.is_quick ? 16 : 32;
  train_options.setup.rate = 0.02;
  train_options.save_weights = file;
  models::PreparedTraining prepared = prepare_training(train_options);
  options.progress("precision-int8: f32, " + std::to_string(train_options.steps) + " steps");
  train(prepared);
  return prepared.options;
}

double live_bytes(const nn::MakeRun& make) {
  return static_cast<double>(nn::profile_training(dry(cpu), make).peak_live_bytes);
}

report::Row exact_row(const models::TrainOptions& trained, const models::QuantizeReport& result) {
  const nn::MakeRun make = inference_run(trained.setup);
  report::Row row;
  row.config = {{"codes", std::string("f32")}};
  row.predicted_bytes = static_cast<std::int64_t>(nn::profile_training(dry(cpu), make).peak_bytes);
  const nn::MemoryProfile measured = nn::profile_training(cpu, make);
  row.measured_bytes = static_cast<std::int64_t>(measured.peak_bytes);
  add_process(row, static_cast<std::size_t>(*row.predicted_bytes), process_bytes(measured));
  row.numbers = {{"live", live_bytes(make)},
                 {"file_bytes", static_cast<double>(result.f32_file_bytes)},
                 {"accuracy", *result.accuracy_f32},
                 {"loss", result.loss_f32},
                 {"ms", result.ms_f32}};
  return row;
}

report::Row coarse_row(const models::TrainOptions& trained, const std::string& calibrator,
                       const models::QuantizeReport& result) {
  report::Row row;
  row.config = {{"codes", "int8, " + calibrator}};
  row.predicted_bytes = static_cast<std::int64_t>(result.predicted_peak_bytes);
  row.measured_bytes = static_cast<std::int64_t>(result.measured_peak_bytes);
  add_process(row, result.predicted_peak_bytes,
              {result.measured_peak_bytes, result.outside, result.process_peak_bytes});
  row.numbers = {
      {"live", live_bytes(int8_inference_run(trained.setup))},
      {"file_bytes", static_cast<double>(result.int8_file_bytes)},
      {"file_ratio", static_cast<double>(result.f32_file_bytes) / static_cast<double>(result.int8_file_bytes)},
      {"accuracy", *result.accuracy_int8},
      {"accuracy_ratio", *result.accuracy_int8 / *result.accuracy_f32},
      {"loss", result.loss_int8},
      {"ms", result.ms_int8},
      {"faster", result.ms_f32 / result.ms_int8}};
  return row;
}

std::string verdict(const report::Experiment& experiment) {
  double least_accuracy = 1e9, least_ratio = 1e9, slowest = 1e9, fastest = 0;
  for (const report::Row& row : experiment.rows) {
    if (!report::find_number(row, "file_ratio")) continue;
    least_accuracy = std::min(least_accuracy, *report::find_number(row, "accuracy_ratio"));
    least_ratio = std::min(least_ratio, *report::find_number(row, "file_ratio"));
    slowest = std::min(slowest, *report::find_number(row, "faster"));
    fastest = std::max(fastest, *report::find_number(row, "faster"));
  }
  char text[320];
  std::snprintf(text, sizeof text,
                "The file is %.2f times smaller (4 %s: scales, biases and names are not 8 bits); of the accuracy at "
                "least %.1f %% is left (98 %% %s); inference is %.1f to %.1f times as fast; ",
                least_ratio, least_ratio >= claimed_ratio ? "is reached" : "is not reached", 100 * least_accuracy,
                least_accuracy >= claimed_accuracy ? "holds" : "does not hold", slowest, fastest);
  return text + equal_rows(experiment) + ".";
}

// The most bytes of each category while a batch passes, in f32 and in 8 bits.
void add_bytes(const models::Setup& setup, bool is_int8, report::Experiment& experiment) {
  const auto bytes_on = [&](Device device) {
    return step_bytes(device, is_int8 ? int8_inference_run(setup, device) : inference_run(setup));
  };
  const StepBytes predicted = bytes_on(dry(cpu)), measured = bytes_on(cpu);
  for (std::size_t i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    report::Row row;
    row.config = {{"model", setup.model},
                  {"image", setup.sizes.image},
                  {"batch", setup.batch},
                  {"codes", std::string(is_int8 ? "int8" : "f32")},
                  {"category", std::string(to_string(category))}};
    if (category == Category::parameter) {
      const models::Theory theory = models::make_theory(setup.model, setup.sizes);
      const models::ModelState state = theory.state(0);
      row.theory_bytes = is_int8 ? theory.int8_bytes() : state.parameters + state.buffers;
    }
    if (category == Category::gradient || category == Category::optimizer) row.theory_bytes = 0;
    row.predicted_bytes = predicted.most[i];
    row.measured_bytes = measured.most[i];
    add_process(row, predicted.process.arena_bytes, measured.process);
    experiment.rows.push_back(row);
  }
}

}  // namespace precision_int8_detail

report::Experiment precision_int8_bytes_experiment(const ExperimentOptions& options) {
  using namespace precision_int8_detail;
  report::Experiment experiment;
  experiment.name = "precision-int8-bytes";
  experiment.title = "Inference in 8 bits, category by category";
  experiment.question = "What are the bytes of inference for, in f32 and in 8 bits?";
  experiment.theory =
      "The most bytes of a category while a batch passes, whenever that is. Parameters by a closed formula: in f32 4 "
      "bytes each, with batch norms and their statistics; in 8 bits batch norms are folded, a weight has one byte, in "
      "panels of whole vectors, and a filter a scale, a bias and a factor of 4 bytes each. There are no gradients and "
      "no optimizer. Activations are what is held by nothing but the pass.";
  for (const char* model : {"resnet18", "resnet50"}) {
    options.progress(std::string("precision-int8-bytes: ") + model);
    models::Setup setup;
    setup.model = model;
    setup.batch = options.is_quick ? 2 : 8;
    setup.sizes.image = options.is_quick ? 32 : 224;
    for (const bool is_int8 : {false, true}) add_bytes(setup, is_int8, experiment);
  }
  const report::Tally tally = report::tally(experiment);
  experiment.verdict = equal_rows(experiment, "rows") + "; theory == predicted in " + std::to_string(tally.named) +
                       " of " + std::to_string(tally.with_theory) + " rows that have a formula.";
  return experiment;
}

report::Experiment precision_int8_experiment(const ExperimentOptions& options) {
  using namespace precision_int8_detail;
  report::Experiment experiment;
  experiment.name = "precision-int8";
  experiment.title = "Inference in 8 bits";
  experiment.question = "Is a net in 8 bits 4 times smaller, and does it keep 98 % of its accuracy?";
  experiment.theory =
      "One byte for a weight and for a value; f32 scales and i32 biases for each filter. Bytes are those of inference "
      "of one batch. Both nets read the same images, in turn for the time: the least of several, on the processor's "
      "clock, of this machine.";
  experiment.columns = {{"live", "live at most", report::Unit::bytes},
                        {"file_bytes", "file", report::Unit::bytes},
                        {"file_ratio", "times smaller", report::Unit::plain, 3},
                        {"accuracy", "accuracy", report::Unit::percent, 2},
                        {"accuracy_ratio", "of that in f32", report::Unit::percent, 2},
                        {"loss", "loss", report::Unit::plain, 4},
                        {"ms", "processor ms per batch", report::Unit::milliseconds, 2},
                        {"faster", "times as fast", report::Unit::plain, 2}};
  const Folder folder;
  ExperimentOptions on_cpu = options;
  on_cpu.device = cpu;  // where 8-bit inference is
  const models::TrainOptions net = trained(on_cpu, folder / "f32.safetensors");
  for (const Calibrator calibrator : nn::quant::calibrators) {
    const std::string name(to_string(calibrator));
    options.progress("precision-int8: " + name);
    models::QuantizeOptions quantize_options;
    quantize_options.setup = net.setup;
    quantize_options.weights = folder / "f32.safetensors";
    quantize_options.data = net.data;
    quantize_options.calibration.calibrator = calibrator;
    quantize_options.save = folder / "int8.safetensors";
    const OneThread alone;
    const models::QuantizeReport result = quantize(quantize_options);
    if (experiment.rows.empty()) experiment.rows.push_back(exact_row(net, result));
    experiment.rows.push_back(coarse_row(net, name, result));
  }
  experiment.verdict = verdict(experiment);
  return experiment;
}

}  // namespace thimble::bench
