// thimble certify: compares a training run within its budget bit by bit with the same run without one.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/models/training/training.h>

namespace thimble::bench {
namespace {

constexpr std::int64_t default_steps = 2, most_certified_steps = 1'000'000;

}  // namespace

void print_certify_json(const models::RunOptions& options, double time_overhead, const nn::Certificate& certificate) {
  nlohmann::ordered_json json{{"model", options.setup.model},
                              {"batch", options.setup.batch},
                              {"steps", certificate.steps},
                              {"holds", certificate.holds()},
                              {"compared_bytes", certificate.bytes}};
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < nn::compared_count; ++i) {
    json["compared"][std::string(to_string(static_cast<nn::Compared>(i)))] = certificate.tensors[i];
    tensors += certificate.tensors[i];
  }
  json["compared_tensors"] = tensors;
  json["different_tensors"] = certificate.differences.size();
  json["first_difference"] = nullptr;
  if (!certificate.differences.empty()) {
    const nn::Difference& first = certificate.differences.front();
    json["first_difference"] = {
        {"step", first.step}, {"what", to_string(first.kind)}, {"name", first.name}, {"is_missing", first.is_missing}};
  }
  json["budget_bytes"] = options.budget_bytes;
  json["plain_peak_bytes"] = certificate.plain.peak_bytes;
  json["planned_peak_bytes"] = certificate.planned.peak_bytes;
  json["predicted_peak_bytes"] = certificate.predicted_peak_bytes;
  json["time_overhead"] = time_overhead;
  json["plain_ms"] = certificate.plain.ms;
  json["planned_ms"] = certificate.planned.ms;
  json["deviations"] = certificate.planned.placed.deviations;
  std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

void add_certify(CLI::App& program) {
  CLI::App* const command =
      program.add_subcommand("certify", "Compare a training run in its budget with the plain one, bit by bit");
  const auto options = std::make_shared<models::RunOptions>();
  options->steps = default_steps;
  options->data = "synthetic";
  options->eval_batches = 1;
  add_training_flags(*command, options);
  add_integer(*command, "--steps", options->steps, 1, most_certified_steps, "Steps to compare (2)");
  command->get_option("--data")->description("Training data, as for 'train' (synthetic)");
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([options, is_json] {
    if (options->warmup < 0) options->warmup = options->steps / 10;
    models::Engine engine(*options);
    const nn::Certificate certificate = engine.certify();
    if (*is_json) {
      print_certify_json(engine.options(), engine.plan().time_overhead, certificate);
    } else {
      std::printf("%s, batch %lld: %s", engine.options().setup.model.c_str(),
                  static_cast<long long>(engine.options().setup.batch), certificate.text().c_str());
    }
    if (!certificate.holds()) {
      std::fflush(stdout);
      throw CLI::RuntimeError(not_predicted_status);
    }
  });
}

}  // namespace thimble::bench
