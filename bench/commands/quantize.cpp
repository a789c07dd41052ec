// thimble quantize: converts a trained model to 8 bits and reports the error and the bytes saved.

#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/core/error.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/quantizing.h>

namespace thimble::bench {
namespace {

constexpr std::int64_t most_batches = 1'000'000;

nlohmann::ordered_json layers_of(const models::QuantizeReport& r) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::quant::StepError& e : r.layers) {
    nlohmann::ordered_json entry{{"name", e.name}, {"cosine", e.cosine}};
    // Equal values have an infinite ratio, which JSON cannot hold.
    if (std::isfinite(e.signal_to_noise_db)) entry["signal_to_noise_db"] = e.signal_to_noise_db;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

void print_quantize_json(const models::QuantizeOptions& options, const models::QuantizeReport& r) {
  nlohmann::ordered_json json{{"model", options.setup.model},
                              {"device", to_string(options.device)},
                              {"scheme", r.scheme},
                              {"parameters", r.parameters}};
  const auto& c = options.calibration;
  if (r.scheme == "int8") {
    json["calibrator"] = nn::quant::to_string(c.calibrator);
    json["activations"] = nn::quant::to_string(c.activations);
    json["weights"] = nn::quant::to_string(c.weights);
  }
  json["f32_file_bytes"] = r.f32_file_bytes;
  if (!options.save.empty()) json["int8_file_bytes"] = r.int8_file_bytes;
  json["f32_weight_bytes"] = r.f32_weight_bytes;
  json["int8_weight_bytes"] = r.int8_weight_bytes;
  json["loss_f32"] = r.loss_f32;
  json["loss_int8"] = r.loss_int8;
  if (r.accuracy_f32) json["accuracy_f32"] = *r.accuracy_f32;
  if (r.accuracy_int8) json["accuracy_int8"] = *r.accuracy_int8;
  json["ms_f32"] = r.ms_f32;
  json["ms_int8"] = r.ms_int8;
  if (r.scheme == "int8") {
    json["predicted_peak_bytes"] = r.predicted_peak_bytes;
    json["measured_peak_bytes"] = r.measured_peak_bytes;
  }
  json["layers"] = layers_of(r);
  std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

namespace {

double ratio(std::size_t a, std::size_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; }

}  // namespace

void print_quantize_table(const models::QuantizeOptions& options, const models::QuantizeReport& r) {
  std::printf("%s in %s: %s parameters\n", options.setup.model.c_str(), r.scheme.c_str(),
              format_grouped(r.parameters).c_str());
  if (!options.save.empty()) {
    std::printf("  file             %s -> %s bytes, %.3f times smaller\n", format_grouped(r.f32_file_bytes).c_str(),
                format_grouped(r.int8_file_bytes).c_str(), ratio(r.f32_file_bytes, r.int8_file_bytes));
  }
  std::printf("  weights          %s -> %s bytes in memory\n", format_grouped(r.f32_weight_bytes).c_str(),
              format_grouped(r.int8_weight_bytes).c_str());
  std::printf("  loss             %.4f -> %.4f\n", r.loss_f32, r.loss_int8);
  if (r.accuracy_f32 && r.accuracy_int8) {
    std::printf("  accuracy         %.4f -> %.4f\n", *r.accuracy_f32, *r.accuracy_int8);
  }
  std::printf("  time             %.2f -> %.2f ms %sfor %lld samples, %.2f times as fast\n", r.ms_f32, r.ms_int8,
              options.device.is_cuda() ? "" : "of the processor ", static_cast<long long>(options.setup.batch),
              r.ms_int8 > 0 ? r.ms_f32 / r.ms_int8 : 0);
  const bool is_net = r.scheme == "int8";
  if (is_net) {
    std::printf("  predicted peak   %s\n  measured peak    %s\n", format_grouped(r.predicted_peak_bytes).c_str(),
                format_grouped(r.measured_peak_bytes).c_str());
  }
  std::printf("%-28s  signal to noise     cosine\n", is_net ? "error up to each step" : "error of each weight");
  for (const nn::quant::StepError& e : r.layers) {
    std::printf("  %-28s %9.1f dB    %.6f\n", e.name.c_str(), e.signal_to_noise_db, e.cosine);
  }
}

namespace {

[[noreturn]] void refuse_for_text(const CLI::Option& option, const std::string& model) {
  throw ValueError(option.get_name() + ": expected a model over images, whose activations are calibrated, got " +
                   model + ", a model over text; leave it out");
}

}  // namespace

void add_quantize(CLI::App& program) {
  using nn::quant::Activations;
  using nn::quant::WeightScales;
  CLI::App* const command = program.add_subcommand("quantize", "Put a trained model in 8 bits");
  const auto options = std::make_shared<models::QuantizeOptions>();
  add_model_flags(*command, std::shared_ptr<models::Setup>(options, &options->setup));
  models::QuantizeOptions& o = *options;
  command->add_option("--weights", o.weights, "Trained parameters in safetensors")->type_name("PATH")->required();
  command->add_option("--data", o.data, "Data as for 'train', whose training part calibrates")
      ->type_name("PATH")
      ->required();
  add_text(*command, "--calibrator", "NAME", "Range of activations: max, percentile, entropy or mse (mse)",
           [&o](const std::string& text) { o.calibration.calibrator = nn::quant::parse_calibrator(text); });
  const CLI::Option* const percent = add_number(*command, "--percent", o.calibration.percent, 1, 100,
                                                "With --calibrator percentile: percent of values in range (99.99)");
  const auto is_symmetric = std::make_shared<bool>(false), is_per_tensor = std::make_shared<bool>(false);
  command->add_flag("--symmetric", *is_symmetric, "Activations in codes -127 to 127 (0 to 255 with a zero point)");
  command->add_flag("--per-tensor", *is_per_tensor, "One scale for the weights of a layer (one per filter)");
  add_integer(*command, "--calibration-batches", o.calibration_batches, 1, most_batches, "Batches to calibrate on (4)");
  add_integer(*command, "--eval-batches", o.eval_batches, 0, most_batches, "Batches to compare on; 0: all (0)");
  add_device(*command, o.device, "Device to calibrate and compare on: cpu, cuda or cuda:N (cpu)");
  command->add_option("--save", o.save, "8-bit file to write")->type_name("FILE");
  add_overwrite_flag(*command, o.overwrites);
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  // Only nets over images are calibrated.
  std::vector<const CLI::Option*> for_images;
  for (const char* flag : {"--calibrator", "--percent", "--symmetric", "--per-tensor", "--calibration-batches"}) {
    for_images.push_back(command->get_option(flag));
  }
  command->callback([options, is_symmetric, is_per_tensor, is_json, percent, for_images] {
    using nn::quant::Calibrator;
    if (models::make_model(options->setup.model, {}, {dry(cpu)})->is_text()) {
      for (const CLI::Option* option : for_images) {
        if (option->count() > 0) refuse_for_text(*option, options->setup.model);
      }
    }
    if (percent->count() > 0 && options->calibration.calibrator != Calibrator::percentile) {
      throw ValueError("--percent: expected --calibrator percentile, got --calibrator " +
                       std::string(nn::quant::to_string(options->calibration.calibrator)));
    }
    if (*is_symmetric) options->calibration.activations = Activations::symmetric;
    if (*is_per_tensor) options->calibration.weights = WeightScales::per_tensor;
    const models::QuantizeReport report = quantize(*options);
    *is_json ? print_quantize_json(*options, report) : print_quantize_table(*options, report);
  });
}

}  // namespace thimble::bench
