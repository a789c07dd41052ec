// Flags shared by commands.

#include <thimble/bench/commands/flags.h>
#include <thimble/models/training/costs.h>

#include <algorithm>
#include <limits>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/core/error.h>
#include <thimble/models/techniques/setup.h>

namespace thimble::bench {
namespace {

// A larger size is a typing error; below the limit, products of sizes stay within 64 bits where it matters.
constexpr std::int64_t largest_size = 1 << 24;

}  // namespace

memory::Device parse_device_flag(std::string_view flag, const std::string& text) {
  constexpr const char* expected = "cpu, cuda or cuda:N";
  try {
    const memory::Device device = parse_device(text);
    if (!device.is_dry) return device;
  } catch (const ValueError&) {
    refuse_value(flag, expected, text);
  }
  refuse_value(flag, std::string(expected) + " ('thimble plan' runs dry)", text);
}

void require_flags(const CLI::App& command, std::span<const std::string_view> known, const std::string& expected,
                   const std::string& mode) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--help" || std::ranges::find(known, name) != known.end()) continue;
    throw ValueError(name + ": expected " + expected + ", got " + mode + "; leave out one of them");
  }
}

void add_overwrite_flag(CLI::App& command, bool& target) {
  command.add_flag("--overwrite", target, "Outputs may replace files of other kinds, but not inputs or each other");
}

CLI::Option* add_text(CLI::App& command, const std::string& flag, const std::string& type, const std::string& help,
                      const std::function<void(const std::string&)>& read) {
  return command.add_option_function(flag, read, help)->type_name(type);
}

CLI::Option* add_size(CLI::App& command, const std::string& flag, std::size_t& target, const std::string& help) {
  return add_text(command, flag, "SIZE", help, [&target, flag](const std::string& text) {
    target = parse_bytes(flag, text);
    if (target == 0) refuse_value(flag, "at least 1 byte", text);
  });
}

CLI::Option* add_integer(CLI::App& command, const std::string& flag, std::int64_t& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  return add_text(command, flag, "N", help, [flag, &target, low, high](const std::string& text) {
    target = parse_integer(flag, text, low, high);
  });
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target, double low, double high,
                        const std::string& help) {
  return add_text(command, flag, "X", help, [flag, &target, low, high](const std::string& text) {
    target = parse_number(flag, text, low, high);
  });
}

void add_seed(CLI::App& command, std::uint64_t& target, const std::string& help) {
  add_text(command, "--seed", "N", help, [&target](const std::string& text) {
    target = static_cast<std::uint64_t>(parse_integer("--seed", text, 0, std::numeric_limits<std::int64_t>::max()));
  });
}

void add_device(CLI::App& command, memory::Device& target, const std::string& help) {
  add_text(command, "--device", "DEVICE", help,
           [&target](const std::string& text) { target = parse_device_flag("--device", text); });
}

void add_model_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  models::Setup& s = *setup;  // the callbacks below share `setup`, so it lives as long as the parser
  command.add_option("MODEL", s.model, "Model, as 'thimble models' lists them")->required();
  add_integer(command, "--batch", s.batch, 1, largest_size, "Samples per step (8)");
  add_integer(command, "--seq", s.sizes.sequence, 1, largest_size, "Tokens per sample (the model's)");
  add_integer(command, "--image", s.sizes.image, 1, largest_size, "Height and width of images in pixels (the model's)");
  add_integer(command, "--layers", s.sizes.layers, 1, 4096, "Layers (the model's)");
  add_integer(command, "--heads", s.sizes.heads, 1, largest_size, "Attention heads (the model's)");
  add_integer(command, "--width", s.sizes.width, 1, largest_size, "Width of hidden layers (the model's)");
  add_integer(command, "--kv-heads", s.sizes.key_heads, 1, largest_size,
              "Llama: heads of keys and values, a divisor of --heads (in proportion)");
  add_integer(command, "--mlp", s.sizes.hidden, 1, largest_size,
              "Llama: width inside the feed-forward layer (in proportion to --width)");
  add_technique_flags(command, setup, {models::FlagSet::sizes});
  add_text(
      command, "--shared-kernels", "S", "sharedconv: convolutions share kernels (on) or have separate ones (off) (on)",
      [&s](const std::string& text) { s.sizes.shares_kernels = parse_choice("--shared-kernels", text, "on", "off"); });
  add_seed(command, s.seed, "Seed of initial values, batches and dropout (1)");
}

void add_technique_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup,
                         std::initializer_list<models::FlagSet> sets) {
  for (const models::Technique& technique : models::techniques()) {
    if (std::find(sets.begin(), sets.end(), technique.flag.commands) == sets.end()) continue;
    const CLI::Option* const dtype = command.get_option_no_throw("--dtype");
    const auto read = [setup, dtype, &technique](const std::string& text) {
      const DType asked = setup->precision.dtype;
      technique.apply(*setup, text);
      if (dtype != nullptr && dtype->count() > 0) setup->precision.dtype = asked;
    };
    const std::string help(technique.flag.help), type(technique.flag.type());
    const std::string flag(technique.flag.spelling.substr(0, technique.flag.spelling.find(' ')));
    if (type.ends_with(',')) {
      const auto read_list = [read](const std::vector<std::string>& words) { read(models::fields::in_words(words)); };
      command.add_option_function<std::vector<std::string>>(flag, read_list, help)
          ->type_name(type.substr(0, type.size() - 1))
          ->delimiter(',');
    } else if (!type.empty()) {
      command.add_option_function<std::string>(flag, read, help)->type_name(type);
    } else if (flag != technique.flag.name()) {
      command.add_flag(flag)->description(help)->each(read);
    } else {
      command.add_flag_callback(
          flag, [read] { read("on"); }, help);
    }
  }
}

void add_setup_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  add_model_flags(command, setup);
  command.add_option("--tokenizer", setup->tokenizer, "GPT and Llama: tokenizer.json for text")->type_name("FILE");
  add_technique_flags(command, setup, {models::FlagSet::dtypes, models::FlagSet::step});
}

void add_cost_flags(CLI::App& command, const std::shared_ptr<models::CostOptions>& costs) {
  command.add_flag("--profile", costs->measures, "Time operators first, in a few steps with a small batch");
  command
      .add_option("--profile-file", costs->times,
                  "Times of operators from an earlier --profile; with --profile: the file to write")
      ->type_name("FILE");
}

}  // namespace thimble::bench
