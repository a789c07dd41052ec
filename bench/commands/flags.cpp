// The flags that the commands share.

#include <thimble/bench/commands/flags.h>
#include <thimble/models/planning/costs.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/setup.h>

namespace thimble::bench {
namespace flags_detail {

// Sizes beyond this are slips of the keyboard; their products stay within 64 bits where it matters.
constexpr std::int64_t largest_size = 1 << 24;

/// The flag of an option; the others have its name with dashes.
std::string flag_of(std::string option) {
  constexpr std::pair<std::string_view, std::string_view> of_other_name[] = {
      {"allows_lossy", "allow-lossy"},
      {"allows_tf32", "tf32"},
      {"bucket_bytes", "bucket"},
      {"budget_bytes", "budget"},
      {"clip_norm", "clip"},
      {"finds_batch", "max-batch"},
      {"finds_sequence", "max-seq"},
      {"recomputes_blocks", "recompute-blocks"},
      {"fuses_optimizer", "fuse-optimizer"},
      {"hidden", "mlp"},
      {"is_inference", "inference"},
      {"is_int8", "int8"},
      {"key_heads", "kv-heads"},
      {"lora_rank", "lora"},
      {"measures", "profile"},
      {"min_rate", "min-lr"},
      {"overwrites", "overwrite"},
      {"offloads_gradients", "offload-gradients"},
      {"offloads_optimizer", "offload-optimizer"},
      {"offloads_parameters", "offload-parameters"},
      {"prices_techniques", "techniques"},
      {"process_budget_bytes", "process-budget"},
      {"rate", "lr"},
      {"captures_steps", "cuda-graph"},
      {"sequence", "seq"},
      {"shares_kernels", "shared-kernels"},
      {"times", "profile-file"}};
  for (const auto& [name, flag] : of_other_name) {
    if (option == name) return "--" + std::string(flag);
  }
  std::replace(option.begin(), option.end(), '_', '-');
  return "--" + option;
}

// One of the dtypes of `names`, a list with commas.
DType parse_one_of(const std::string& flag, const std::string& text, const std::string& names) {
  const std::string list = ", " + names + ",";
  if (!text.empty() && list.find(", " + text + ",") != std::string::npos) return parse_dtype(text);
  refuse_value(flag, "one of " + names, text);
}

DType parse_state(const std::string& text) { return parse_one_of("--state", text, "f32, bf16, u8"); }

// "i8", or "i8:gelu,f8e4m3:linear,bf16": to what results of operators are packed, by name or all others.
void parse_packed(const std::string& text, models::Setup& setup) {
  constexpr const char* flag = "--allow-lossy";
  constexpr const char* dtypes = "bf16, f16, f8e4m3, f8e5m2, i8";
  setup.allows_lossy = true;
  setup.lossy_rules.clear();
  setup.packs_rest = false;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = entry.find(':');
    if (colon == std::string::npos) {
      setup.lossy = parse_one_of(flag, entry, dtypes);
      if (setup.packs_rest) refuse_value(flag, "one dtype without an operator's name", text);
      setup.packs_rest = true;
      continue;
    }
    const std::string to = entry.substr(0, colon);
    nn::PackRule rule{entry.substr(colon + 1), std::nullopt};
    if (to != "none") rule.dtype = parse_one_of(flag, to, std::string(dtypes) + ", none");
    if (rule.name.empty()) refuse_value(flag, "an operator's name after the colon, as in i8:gelu", entry);
    for (const nn::PackRule& other : setup.lossy_rules) {
      if (other.name == rule.name) refuse_value(flag, quote(rule.name) + " once", text);
    }
    setup.lossy_rules.push_back(std::move(rule));
  }
  const bool packs_any =
      setup.packs_rest || std::any_of(setup.lossy_rules.begin(), setup.lossy_rules.end(),
                                      [](const nn::PackRule& rule) { return rule.dtype.has_value(); });
  if (!packs_any) refuse_value(flag, "a dtype besides none, as in none:attention,bf16", text);
}

}  // namespace flags_detail

void refuse_value(std::string_view flag, std::string_view expected, const std::string& text) {
  throw ValueError(std::string(flag) + ": expected " + std::string(expected) + ", got " + quote(text));
}

std::int64_t parse_integer(std::string_view flag, const std::string& text, std::int64_t low, std::int64_t high,
                           std::string_view or_else) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    refuse_value(flag,
                 "a whole number from " + std::to_string(low) + " to " + std::to_string(high) + std::string(or_else),
                 text);
  }
  return value;
}

double parse_number(std::string_view flag, const std::string& text, double low, double high, std::string_view or_else) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value) || value < low || value > high) {
    const bool is_bounded = high < std::numeric_limits<double>::max();
    const std::string bounds =
        is_bounded ? "from " + format_real(low) + " to " + format_real(high) : ">= " + format_real(low);
    refuse_value(flag, "a finite number " + bounds + std::string(or_else), text);
  }
  return value;
}

std::size_t parse_bytes(std::string_view flag, const std::string& text) {
  try {
    return static_cast<std::size_t>(parse_size(text));
  } catch (const ValueError& error) {
    throw ValueError(std::string(flag) + ": " + error.what());
  }
}

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

bool parse_choice(std::string_view flag, const std::string& text, std::string_view yes, std::string_view no) {
  if (text != yes && text != no) refuse_value(flag, std::string(yes) + " or " + std::string(no), text);
  return text == yes;
}

std::string with_flags(std::string_view text) {
  constexpr std::string_view of_names = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::string said;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '`' ? text.find_first_not_of(of_names, at + 1) : std::string_view::npos;
    if (end == std::string_view::npos || text[end] != '`' || end == at + 1) {
      said += text[at++];
      continue;
    }
    said += flags_detail::flag_of(std::string(text.substr(at + 1, end - at - 1)));
    at = end + 1;
  }
  return said;
}

void add_overwrite_flag(CLI::App& command, bool& target) {
  command.add_flag("--overwrite", target, "Outputs may replace files of other kinds, but not inputs or each other");
}

CLI::Option* add_size(CLI::App& command, const std::string& flag, std::size_t& target, const std::string& help) {
  return command
      .add_option_function<std::string>(
          flag,
          [&target, flag](const std::string& text) {
            target = parse_bytes(flag, text);
            if (target == 0) refuse_value(flag, "at least 1 byte", text);
          },
          help)
      ->type_name("SIZE");
}

CLI::Option* add_integer(CLI::App& command, const std::string& flag, std::int64_t& target, std::int64_t low,
                         std::int64_t high, const std::string& help) {
  const auto read = [flag, &target, low, high](const std::string& text) {
    target = parse_integer(flag, text, low, high);
  };
  return command.add_option_function<std::string>(flag, read, help)->type_name("N");
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, double& target, double low, double high,
                        const std::string& help) {
  const auto read = [flag, &target, low, high](const std::string& text) {
    target = parse_number(flag, text, low, high);
  };
  return command.add_option_function<std::string>(flag, read, help)->type_name("X");
}

void add_model_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  using flags_detail::largest_size;
  models::Setup& s = *setup;  // the callbacks below share `setup`, so it lives as long as the parser
  command
      .add_option_function<std::string>(
          "MODEL", [setup](const std::string& text) { setup->model = text; }, "Model, as 'thimble models' lists them")
      ->required();
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
  add_integer(command, "--window", s.sizes.window, 1, largest_size,
              "Text models: attention window in tokens (unlimited)");
  command
      .add_option_function<std::string>(
          "--shared-kernels",
          [setup](const std::string& text) {
            setup->sizes.shares_kernels = parse_choice("--shared-kernels", text, "on", "off");
          },
          "sharedconv: convolutions share kernels (on) or have separate ones (off) (on)")
      ->type_name("S");
  command
      .add_option_function<std::string>(
          "--seed",
          [setup](const std::string& text) {
            setup->seed =
                static_cast<std::uint64_t>(parse_integer("--seed", text, 0, std::numeric_limits<std::int64_t>::max()));
          },
          "Seed of initial values, batches and dropout (1)")
      ->type_name("N");
}

void add_setup_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  add_model_flags(command, setup);
  command
      .add_option_function<std::string>(
          "--head",
          [setup](const std::string& text) {
            const bool is_full = parse_choice("--head", text, "full", "chunked");
            setup->sizes.head = is_full ? models::Head::full : models::Head::chunked;
          },
          "Text models: full computes all logits at once, chunked some rows at a time (full)")
      ->type_name("H");
  command
      .add_option_function<std::string>(
          "--feed-forward",
          [setup](const std::string& text) {
            const bool is_full = parse_choice("--feed-forward", text, "full", "tiled");
            setup->sizes.feed_forward = is_full ? models::FeedForward::full : models::FeedForward::tiled;
          },
          "Transformers: full keeps inner activations, tiled computes some tokens at a time, again in backward (full)")
      ->type_name("F");
  command.add_option("--tokenizer", setup->tokenizer, "GPT family: tokenizer.json for text")->type_name("FILE");
  command.add_flag("--recompute-blocks", setup->recomputes_blocks,
                   "Transformers: keep only the input of each block, and run the block again in backward");
  command.add_flag("--fuse-optimizer", setup->fuses_optimizer,
                   "Update each parameter during backward and free its gradient; without clipping and micro-batches");
  command
      .add_option_function<std::string>(
          "--micro-batches",
          [setup](const std::string& text) {
            setup->micro_batches =
                text == "auto" ? models::auto_micro_batches
                               : parse_integer("--micro-batches", text, 1, flags_detail::largest_size, " or auto");
          },
          "Gradient-accumulation steps; auto: the fastest that fits the budget (1)")
      ->type_name("N|auto");
  add_precision_flags(command, setup);
  add_lora_flags(command, setup);
  command
      .add_option_function<std::string>(
          "--optimizer",
          [setup](const std::string& text) {
            setup->optimizer = text;
            optimizer_name(*setup, false);
          },
          "sgd, momentum, adam, adamw, adafactor, muon, apollo-mini, galore, adam-mini, momentum8, adam8, adamw8 "
          "(text: adamw, images: momentum)")
      ->type_name("O");
  add_integer(command, "--optimizer-rank", setup->optimizer_rank, 1, 1 << 20, "GaLore: rank of the projection (128)");
  command
      .add_option_function<std::string>(
          "--state", [setup](const std::string& text) { setup->state = flags_detail::parse_state(text); },
          "Dtype of the moments of momentum, adam and adamw: f32, bf16, u8 (f32)")
      ->type_name("D");
  command
      .add_option("--full-state", setup->full_state,
                  "Parameters whose state stays f32 with a narrower --state, by name or prefix (no parameter)")
      ->type_name("NAME")
      ->delimiter(',');
}

void add_spill_flags(CLI::App& command, const std::shared_ptr<models::Setup>& setup) {
  command
      .add_option("--offload", setup->offload,
                  "Plans may move saved tensors to a file in this folder; on a GPU 'host': to pinned memory")
      ->type_name("FOLDER|host");
  command.add_flag("--offload-optimizer", setup->offloads_optimizer,
                   "With --offload: optimizer state waits there between updates");
  command.add_flag("--offload-parameters", setup->offloads_parameters,
                   "With --offload: parameters wait there between uses, and --read-ahead layers are read in advance");
  command
      .add_option_function<std::string>(
          "--read-ahead",
          [setup](const std::string& text) {
            setup->read_ahead = static_cast<int>(parse_integer("--read-ahead", text, 0, 65536));
          },
          "Layers whose parameters are read in advance, with --offload-parameters or --zero 3 (1)")
      ->type_name("N");
  command.add_flag("--offload-gradients", setup->offloads_gradients,
                   "With --offload: gradients wait there from backward to the update");
  // A flag: it takes a value only after "=", so that a model's name after it stays one.
  command.add_flag("--allow-lossy{bf16}")
      ->description(
          "Plans may pack saved tensors, which rounds gradients: =D to bf16, f16, f8e4m3, f8e5m2 or i8, "
          "=D:OPERATOR,... by operator (bf16)")
      ->each([setup](const std::string& text) { flags_detail::parse_packed(text, *setup); });
}

void add_cost_flags(CLI::App& command, const std::shared_ptr<models::CostOptions>& costs) {
  command.add_flag("--profile", costs->measures, "Time operators first, in a few steps with a small batch");
  command
      .add_option("--profile-file", costs->times,
                  "Times of operators from an earlier --profile; with --profile: the file to write")
      ->type_name("FILE");
}

}  // namespace thimble::bench
