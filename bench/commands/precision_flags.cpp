// The flags of training in low precision: dtype, policy, and changes to the recipe of a policy.

#include <algorithm>
#include <limits>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/models/training/setup.h>

namespace thimble::bench {
namespace precision_flags_detail {

std::string precision_names() {
  std::string names;
  for (const nn::Precision& p : nn::precisions()) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

DType parse_floating(const std::string& text) {
  try {
    if (const DType dtype = parse_dtype(text); is_floating(dtype)) return dtype;
  } catch (const Error&) {  // the same refusal
  }
  refuse_value("--dtype", "one of f64, f32, f16, bf16, f8e4m3, f8e5m2", text);
}

optim::GradScalerOptions parse_loss_scale(const std::string& text) {
  optim::GradScalerOptions options;
  if (text == "dynamic") return options;
  options.scale = parse_number("--loss-scale", text, options.least, options.most, " or dynamic");
  options.is_dynamic = false;
  return options;
}

void add_integer_of(CLI::App& command, const std::shared_ptr<models::Setup>& setup, const std::string& flag,
                    std::optional<std::int64_t> models::Setup::*target, std::int64_t low, std::int64_t high,
                    const std::string& help) {
  const auto read = [=](const std::string& text) { (*setup).*target = parse_integer(flag, text, low, high); };
  command.add_option_function<std::string>(flag, read, help)->type_name("N");
}

}  // namespace precision_flags_detail

void add_dtype_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  using namespace precision_flags_detail;
  const CLI::Option* const dtype =
      command
          .add_option_function<std::string>(
              "--dtype", [setup](const std::string& text) { setup->dtype = parse_floating(text); },
              "Dtype of parameters and activations: f64, f32, f16, bf16, f8e4m3, f8e5m2 (f32)")
          ->type_name("D");
  command  // after --dtype: callbacks run in this order
      .add_option_function<std::string>(
          "--precision",
          [setup, dtype](const std::string& text) {
            const auto is_asked = [&](const nn::Precision& p) { return text == p.name; };
            if (std::ranges::none_of(nn::precisions(), is_asked)) {
              refuse_value("--precision", "one of " + precision_names(), text);
            }
            const DType asked = setup->dtype;
            set_precision(*setup, text);
            if (dtype->count() > 0) setup->dtype = asked;
            tensor_options(*setup, cpu);
          },
          "Mixed precision: " + precision_names() + " (off: all in --dtype)")
      ->type_name("P");
}

void add_precision_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  using namespace precision_flags_detail;
  add_dtype_flags(command, setup);
  command.add_flag("--fp8-strict", setup->fp8_strict, "FP8: refuse layers that fall back to a higher precision");
  add_integer_of(command, setup, "--fp8-history", &models::Setup::fp8_history, 1, 1024,
                 "With --precision fp8: steps of amax history per scale (16)");
  add_integer_of(command, setup, "--fp8-margin", &models::Setup::fp8_margin, 0, 16,
                 "With --precision fp8 or fp8-current: scales are 2^N larger than amax needs (0)");
  command
      .add_option_function<std::string>(
          "--fp8-hybrid",
          [setup](const std::string& text) { setup->fp8_hybrid = parse_choice("--fp8-hybrid", text, "on", "off"); },
          "FP8: gradients in E5M2 (on) or E4M3 (off) (on; fp8-block: off)")
      ->type_name("S");
  command
      .add_option_function<std::string>(
          "--loss-scale", [setup](const std::string& text) { setup->loss_scale = parse_loss_scale(text); },
          "dynamic, or a fixed scale from 1 to 2^24 (dynamic for O1 and O2, else none)")
      ->type_name("dynamic|X");
  add_integer_of(command, setup, "--loss-scale-interval", &models::Setup::loss_scale_interval, 1,
                 std::numeric_limits<std::int32_t>::max(),
                 "Finite steps in a row after which a dynamic scale doubles (2000)");
}

}  // namespace thimble::bench
