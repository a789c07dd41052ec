// Experiments: is a net in 8 bits 4 times smaller, and does it keep 98 % of its accuracy? And its bytes in inference.

#include <algorithm>
#include <cstdio>
#include <string>

#include <thimble/bench/experiments/precision.h>
#include <thimble/bench/timing/processor_time.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/quantizing.h>

namespace thimble::bench {
namespace precision_int8_detail {

constexpr double claimed_ratio = 4, claimed_accuracy = 0.98;

// A residual net that reads generated images, and its file.
models::TrainOptions trained(const Rows& rows, const std::string& file) {
  models::TrainOptions options = generated_training(rows.options, "resnet18", 150, 300);
  options.device = cpu;  // where 8-bit inference is
  options.setup.batch = rows.sizes(16, 32);
  options.setup.sizes.width = 8;
  options.setup.sizes.image = rows.sizes(16, 32);
  options.setup.rate = 0.02;
  options.save_weights = file;
  const models::PreparedTraining prepared = prepare_training(options);
  rows.say("f32, " + std::to_string(options.steps) + " steps");
  train(prepared);
  return prepared.options;
}

double live_bytes(const nn::MakeRun& make) {
  return static_cast<double>(nn::profile_training(dry(cpu), make).peak_live_bytes);
}

Figures exact_figures(const models::TrainOptions& trained, const models::QuantizeReport& result) {
  const nn::MakeRun make = inference_run(trained.setup);
  const std::size_t predicted = nn::profile_training(dry(cpu), make).peak_bytes;
  const nn::MemoryProfile measured = nn::profile_training(cpu, make);
  return {.predicted = predicted,
          .measured = measured.peak_bytes,
          .numbers = {{"live", live_bytes(make)},
                      {"file_bytes", result.f32_file_bytes},
                      {"accuracy", *result.accuracy_f32},
                      {"loss", result.loss_f32},
                      {"ms", result.ms_f32}},
          .processes = {{predicted, process_bytes(measured)}}};
}

Figures int8_figures(const models::TrainOptions& trained, const models::QuantizeReport& result) {
  const double ratio = static_cast<double>(result.f32_file_bytes) / static_cast<double>(result.int8_file_bytes);
  const ProcessBytes process{result.measured_peak_bytes, result.outside, result.process_peak_bytes};
  return {.predicted = result.predicted_peak_bytes,
          .measured = result.measured_peak_bytes,
          .numbers = {{"live", live_bytes(int8_inference_run(trained.setup))},
                      {"file_bytes", result.int8_file_bytes},
                      {"file_ratio", ratio},
                      {"accuracy", *result.accuracy_int8},
                      {"accuracy_ratio", *result.accuracy_int8 / *result.accuracy_f32},
                      {"loss", result.loss_int8},
                      {"ms", result.ms_int8},
                      {"faster", result.ms_f32 / result.ms_int8}},
          .processes = {{result.predicted_peak_bytes, process}}};
}

std::string verdict(const report::Experiment& experiment) {
  double least_accuracy = 1e9, least_ratio = 1e9, slowest = 1e9, fastest = 0;
  for (const report::Row& row : experiment.rows) {
    if (!value(row, "file_ratio")) continue;
    least_accuracy = std::min(least_accuracy, number(row, "accuracy_ratio"));
    least_ratio = std::min(least_ratio, number(row, "file_ratio"));
    slowest = std::min(slowest, number(row, "faster"));
    fastest = std::max(fastest, number(row, "faster"));
  }
  char text[320];
  std::snprintf(text, sizeof text,
                "The file is %.2f times smaller (4 %s: scales, biases and names are not 8 bits); of the accuracy at "
                "least %.1f %% is left (98 %% %s); inference is %.1f to %.1f times as fast; ",
                least_ratio, least_ratio >= claimed_ratio ? "is reached" : "is not reached", 100 * least_accuracy,
                least_accuracy >= claimed_accuracy ? "holds" : "does not hold", slowest, fastest);
  return text + equal_rows(experiment) + ".";
}

}  // namespace precision_int8_detail

std::string run_precision_int8(Rows& rows) {
  using namespace precision_int8_detail;
  const Folder folder;
  const models::TrainOptions net = trained(rows, folder.file("f32.safetensors"));
  for (const nn::quant::Calibrator calibrator : nn::quant::calibrators) {
    const std::string name(to_string(calibrator));
    rows.say(name);
    models::QuantizeOptions options;
    options.setup = net.setup;
    options.weights = net.save_weights;
    options.data = net.data;
    options.calibration.calibrator = calibrator;
    options.save = folder.file("int8.safetensors");
    const OneThread alone;
    const models::QuantizeReport result = quantize(options);
    if (rows.experiment.rows.empty()) rows.add({{"codes", "f32"}}, exact_figures(net, result));
    rows.add({{"codes", "int8, " + name}}, int8_figures(net, result));
  }
  return verdict(rows.experiment);
}

std::string run_precision_int8_bytes(Rows& rows) {
  for (const char* model : {"resnet18", "resnet50"}) {
    const models::Setup setup = setup_of(model, rows.sizes(2, 8), {.image = rows.sizes(32, 224)});
    const models::Theory theory = models::make_theory(setup.model, setup.sizes);
    rows.say(model);
    for (const bool is_int8 : {false, true}) {
      const auto bytes_on = [&](memory::Device device) {
        return step_bytes(device, is_int8 ? int8_inference_run(setup, device) : inference_run(setup));
      };
      add_categories(rows,
                     {{"model", setup.model},
                      {"image", setup.sizes.image},
                      {"batch", setup.batch},
                      {"codes", is_int8 ? "int8" : "f32"}},
                     {bytes_on(dry(cpu)), bytes_on(cpu)}, false, [&](Category category) -> std::optional<std::int64_t> {
                       if (category == Category::gradient || category == Category::optimizer) return 0;
                       if (category != Category::parameter) return std::nullopt;
                       const models::ModelState state = theory.state(0);
                       return is_int8 ? theory.int8_bytes() : state.parameters + state.buffers;
                     });
    }
  }
  return equal_rows(rows.experiment, "rows") + "; " + equal_theory(rows.experiment) + ".";
}

}  // namespace thimble::bench
