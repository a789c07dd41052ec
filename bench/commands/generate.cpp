// thimble generate: writes text with a trained model, in exactly the bytes that the dry run predicted.

#include <thimble/bench/commands/plan_output.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/packing_report.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

constexpr std::int64_t most_tokens = std::int64_t{1} << 24;

std::vector<std::size_t> written_of(const models::GenerateReport& r) {
  std::vector<std::size_t> counts;
  for (const std::vector<std::int64_t>& tokens : r.tokens) counts.push_back(tokens.size());
  return counts;
}

/// Reason for each sequence's end: an end token, or the requested length.
std::vector<std::string> ended_of(const models::GenerateReport& r) {
  std::vector<std::string> reasons;
  for (const std::optional<std::int64_t>& by : r.ended_by) {
    reasons.push_back(by ? "end token " + std::to_string(*by) : "length");
  }
  return reasons;
}

}  // namespace

void print_generate_json(const models::PreparedGeneration& prepared, const models::GenerateReport& r) {
  const models::GenerationPlan& plan = prepared.plan;
  nlohmann::ordered_json json{{"model", plan.shape.setup.model},
                              {"parameters", r.parameters},
                              {"device", to_string(prepared.options.device)},
                              {"batch", plan.shape.setup.batch},
                              {"context", plan.shape.context},
                              {"prompt_tokens", plan.shape.prompt_tokens},
                              {"tokens", plan.shape.tokens},
                              {"end_tokens", prepared.end_tokens},
                              {"written", written_of(r)},
                              {"ended", ended_of(r)},
                              {"cache", to_string(plan.cache.dtype)},
                              {"cache_bytes_per_token", plan.cache.bytes_per_token()},
                              {"cache_bytes", r.cache_bytes},
                              {"predicted_peak_bytes", r.predicted_peak_bytes},
                              {"measured_peak_bytes", r.measured_peak_bytes},
                              {"peak_by_category", categories_json(plan.peak_by_category)},
                              {"prompt_seconds", r.prompt_seconds},
                              {"tokens_per_second", r.tokens_per_second},
                              {"prompt", prepared.options.prompt},
                              {"texts", r.texts}};
  // A model's text may not be valid UTF-8.
  std::cout << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

namespace {

void print_figures(const models::PreparedGeneration& prepared, const models::GenerateReport& r) {
  const models::GenerationPlan& plan = prepared.plan;
  std::int64_t written = 0;
  for (const std::size_t count : written_of(r)) written += static_cast<std::int64_t>(count);
  std::fprintf(stderr, "%s tokens, %.1f a second; the prompt's %lld in %.3f s\n", format_grouped(written).c_str(),
               r.tokens_per_second, static_cast<long long>(plan.shape.prompt_tokens), r.prompt_seconds);
  for (std::size_t b = 0; b < r.ended_by.size(); ++b) {
    if (!r.ended_by[b]) continue;
    std::fprintf(stderr, "%sended by token %lld after %zu; --ignore-end writes on\n",
                 r.ended_by.size() > 1 ? ("sequence " + std::to_string(b) + " ").c_str() : "",
                 static_cast<long long>(*r.ended_by[b]), r.tokens[b].size());
  }
  std::fprintf(stderr, "arena: predicted %s bytes, measured %s; the cache %s (%s, %s for each token)\n",
               format_grouped(r.predicted_peak_bytes).c_str(), format_grouped(r.measured_peak_bytes).c_str(),
               format_grouped(r.cache_bytes).c_str(), std::string(to_string(plan.cache.dtype)).c_str(),
               format_grouped(plan.cache.bytes_per_token()).c_str());
}

/// Streams a single sequence; prints several sequences one after the other at the end.
void run(const models::GenerateOptions& options, bool is_json) {
  const models::PreparedGeneration prepared = models::prepare_generation(options);
  const bool streams = !is_json && options.shape.setup.batch == 1;
  bool has_begun = false;  // the prompt is printed with the first token, after the weights are read
  const models::GenerateReport report = generate(prepared, [&](const std::vector<std::string>& pieces) {
    if (!streams) return;
    if (!has_begun) std::fputs(options.prompt.c_str(), stdout);
    has_begun = true;
    std::fwrite(pieces[0].data(), 1, pieces[0].size(), stdout);
    std::fflush(stdout);
  });
  if (is_json) {
    print_generate_json(prepared, report);
  } else {
    for (std::size_t b = 0; !streams && b < report.texts.size(); ++b) {
      std::printf("--- %zu ---\n%s", b, options.prompt.c_str());
      std::fwrite(report.texts[b].data(), 1, report.texts[b].size(), stdout);
      std::printf("\n");
    }
    if (streams) std::printf("\n");
    std::fflush(stdout);
    print_figures(prepared, report);
  }
  if (report.measured_peak_bytes == report.predicted_peak_bytes) return;
  if (report.is_shorter && report.measured_peak_bytes < report.predicted_peak_bytes) return;
  std::fflush(stdout);
  std::fprintf(stderr, "thimble: the arena's peak measured %s, predicted %s\n",
               memory::exact_bytes(report.measured_peak_bytes).c_str(),
               memory::exact_bytes(report.predicted_peak_bytes).c_str());
  throw CLI::RuntimeError(not_predicted_status);
}

}  // namespace

void add_generate(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("generate", "Write text with a trained model");
  const auto options = std::make_shared<models::GenerateOptions>();
  models::Setup& setup = options->shape.setup;
  setup.batch = 1;
  options->shape.tokens = 100;
  command->add_option("MODEL", setup.model, "Model of the GPT or Llama family, as 'thimble models' lists them")
      ->required();
  command
      ->add_option("--weights", options->weights,
                   "Parameters in safetensors: a file, an index or a Hugging Face folder")
      ->type_name("PATH");
  command->add_option("--checkpoint", options->checkpoint, "Checkpoint of 'thimble train --save'")->type_name("FILE");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json (the characters that --weights names)")
      ->type_name("FILE");
  command->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT")->required();
  add_integer(*command, "--tokens", options->shape.tokens, 1, most_tokens,
              "Tokens to write at most; an end token ends a sequence earlier (100)");
  command->add_flag("--ignore-end", options->ignores_end, "Write all --tokens, past end tokens");
  add_cache_flags(*command, std::shared_ptr<models::GenerationShape>(options, &options->shape),
                  "of the prompt and --tokens");
  add_integer(*command, "--batch", setup.batch, 1, std::int64_t{1} << 20, "Sequences, drawn independently (1)");
  add_integer(*command, "--heads", setup.sizes.heads, 1, std::int64_t{1} << 24,
              "Attention heads, where --weights does not name them (the model's)");
  constexpr double most = std::numeric_limits<double>::max();
  add_number(*command, "--temperature", options->sampling.temperature, 0, most,
             "Temperature of the logits; 0: the most likely token (0.8)");
  add_integer(*command, "--top-k", options->sampling.top_k, 0, most_tokens,
              "Draw from the K most likely tokens; 0: from all (0)");
  add_number(*command, "--top-p", options->sampling.top_p, 0, 1,
             "Draw from the most likely tokens whose probabilities reach this (1)");
  add_seed(*command, setup.seed, "Seed of the draws (1)");
  add_technique_flags(*command, std::shared_ptr<models::Setup>(options, &setup), {models::FlagSet::dtypes});
  add_size(*command, "--budget", options->budget_bytes, "Bytes that the arena may commit (no limit)");
  add_device(*command, options->device, "cpu, cuda or cuda:N (cpu)");
  add_compute_flags(*command);
  const auto is_json = std::make_shared<bool>(false);
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([options, is_json] { run(*options, *is_json); });
}

namespace {

constexpr std::int64_t most_positions = std::int64_t{1} << 24;

constexpr std::string_view of_generation =
    "MODEL --batch --seq --layers --heads --width --kv-heads --mlp --seed --dtype --precision --budget --device --json "
    "--isa --cpu-dot --threads --prompt-tokens --context --generate --cache";

DType parse_cache(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
    if (text == to_string(dtype)) return dtype;
  }
  refuse_value("--cache", "one of f32, f16, bf16, i8, f8e4m3, f8e5m2", text);
}

}  // namespace

void print_generation_json(const models::GenerationPlan& plan, memory::Device device, std::size_t budget) {
  const models::GenerationShape& shape = plan.shape;
  nlohmann::ordered_json json{{"model", shape.setup.model},
                              {"parameters", plan.parameters},
                              {"device", to_string(dry(device))},
                              {"batch", shape.setup.batch},
                              {"context", shape.context},
                              {"prompt_tokens", shape.prompt_tokens},
                              {"tokens", shape.tokens},
                              {"cache", to_string(plan.cache.dtype)},
                              {"cache_bytes_per_token", plan.cache.bytes_per_token()},
                              {"cache_bytes", plan.cache.bytes()},
                              {"peak_bytes", plan.peak_bytes},
                              {"peak_by_category", categories_json(plan.peak_by_category)},
                              {"hole_bytes", plan.committed.hole_bytes},
                              {"rounding_bytes", plan.committed.rounding_bytes}};
  if (budget > 0) {
    json["budget_bytes"] = budget;
    json["feasible"] = plan.peak_bytes <= budget;
  }
  std::cout << json.dump(2) << "\n";
}

void print_generation_table(const models::GenerationPlan& plan, std::size_t budget) {
  const models::GenerationShape& shape = plan.shape;
  std::printf("%s: %s parameters; %lld sequence%s of %lld positions, the first %lld of them read at once\n",
              shape.setup.model.c_str(), format_grouped(plan.parameters).c_str(),
              static_cast<long long>(shape.setup.batch), shape.setup.batch == 1 ? "" : "s",
              static_cast<long long>(shape.context), static_cast<long long>(shape.prompt_tokens));
  if (budget > 0) print_bytes("budget", budget);
  print_bytes("peak (committed)", plan.peak_bytes);
  print_bytes("cache, " + std::string(to_string(plan.cache.dtype)), plan.cache.bytes());
  print_bytes("  of a token", plan.cache.bytes_per_token());
  std::printf("live bytes at the peak, by category\n");
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    if (plan.peak_by_category[i] == 0) continue;
    print_bytes(std::string(to_string(static_cast<memory::Category>(i))), plan.peak_by_category[i]);
  }
  print_bytes("+ holes between blocks", plan.committed.hole_bytes);
  print_bytes("+ rounding to granules", plan.committed.rounding_bytes);
  print_bytes("= peak (committed)", plan.committed.total());
}

void add_cache_flags(CLI::App& command, const std::shared_ptr<models::GenerationShape>& shape,
                     const std::string& context_default) {
  add_integer(command, "--context", shape->context, 1, most_positions,
              "Positions of the key-value cache, prompt included (" + context_default + ")");
  add_text(command, "--cache", "D", "Dtype of cached keys and values: f32, f16, bf16, i8, f8e4m3, f8e5m2 (as computed)",
           [shape](const std::string& text) { shape->cache = parse_cache(text); });
}

void add_generation_flags(CLI::App& command, const std::shared_ptr<GenerationFlags>& flags) {
  command.add_flag("--generate", flags->is_asked, "Plan the generation of tokens instead of a training step");
  add_cache_flags(command, std::shared_ptr<models::GenerationShape>(flags, &flags->shape), "the model's sequence");
  add_integer(command, "--prompt-tokens", flags->shape.prompt_tokens, 1, most_positions,
              "With --generate: tokens of the prompt, read at once (all of --context but one)");
}

void plan_generation(const CLI::App& command, const GenerationFlags& flags, const models::Setup& setup,
                     memory::Device device, std::size_t budget_bytes, bool is_json) {
  require_flags(command, split(of_generation, ' '), "a training step", "--generate");
  models::GenerationShape shape = flags.shape;
  shape.setup = setup;
  if (command.get_option("--batch")->count() == 0) shape.setup.batch = 1;
  const models::GenerationPlan plan = models::plan_generation(shape, device);
  is_json ? print_generation_json(plan, device, budget_bytes) : print_generation_table(plan, budget_bytes);
  if (budget_bytes > 0 && plan.peak_bytes > budget_bytes) throw models::refuse_generation(plan, device, budget_bytes);
}

}  // namespace thimble::bench
