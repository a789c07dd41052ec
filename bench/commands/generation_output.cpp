#include <thimble/bench/commands/generation_output.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace generation_output_detail {

constexpr std::int64_t most_positions = std::int64_t{1} << 24;

constexpr std::array<std::string_view, 21> of_generation{
    "MODEL", "--batch",   "--seq",     "--layers",        "--heads",   "--width",    "--kv-heads",
    "--mlp", "--seed",    "--dtype",   "--precision",     "--budget",  "--device",   "--json",
    "--isa", "--cpu-dot", "--threads", "--prompt-tokens", "--context", "--generate", "--cache"};

DType parse_cache(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8e4m3, DType::f8e5m2}) {
    if (text == to_string(dtype)) return dtype;
  }
  refuse_value("--cache", "one of f32, f16, bf16, i8, f8e4m3, f8e5m2", text);
}

}  // namespace generation_output_detail

void print_generation_json(const models::GenerationPlan& plan, memory::Device device, std::size_t budget) {
  const models::GenerationShape& shape = plan.shape;
  nlohmann::ordered_json by_category;
  for (std::size_t i = 0; i < category_count; ++i) {
    by_category[std::string(to_string(static_cast<Category>(i)))] = plan.peak_by_category[i];
  }
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
                              {"peak_by_category", by_category},
                              {"hole_bytes", plan.committed.hole_bytes},
                              {"rounding_bytes", plan.committed.rounding_bytes}};
  if (budget > 0) {
    json["budget_bytes"] = budget;
    json["feasible"] = plan.peak_bytes <= budget;
  }
  std::cout << json.dump(2) << "\n";
}

namespace generation_output_detail {

void print_bytes(const std::string& name, std::size_t bytes) {
  std::printf("  %-24s %18s  %14s\n", name.c_str(), format_grouped(bytes).c_str(), format_bytes(bytes).c_str());
}

}  // namespace generation_output_detail

void print_generation_table(const models::GenerationPlan& plan, std::size_t budget) {
  using namespace generation_output_detail;
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
  for (std::size_t i = 0; i < category_count; ++i) {
    if (plan.peak_by_category[i] == 0) continue;
    print_bytes(std::string(to_string(static_cast<Category>(i))), plan.peak_by_category[i]);
  }
  print_bytes("+ holes between blocks", plan.committed.hole_bytes);
  print_bytes("+ rounding to granules", plan.committed.rounding_bytes);
  print_bytes("= peak (committed)", plan.committed.total());
}

void add_cache_flags(CLI::App& command, const std::shared_ptr<models::GenerationShape>& shape,
                     const std::string& context_default) {
  using namespace generation_output_detail;
  add_integer(command, "--context", shape->context, 1, most_positions,
              "Positions of the key-value cache, prompt included (" + context_default + ")");
  command
      .add_option_function<std::string>(
          "--cache", [shape](const std::string& text) { shape->cache = parse_cache(text); },
          "Dtype of cached keys and values: f32, f16, bf16, i8, f8e4m3, f8e5m2 (as computed)")
      ->type_name("D");
}

void add_generation_flags(CLI::App& command, const std::shared_ptr<GenerationFlags>& flags) {
  command.add_flag("--generate", flags->is_asked, "Plan the generation of tokens instead of a training step");
  add_cache_flags(command, std::shared_ptr<models::GenerationShape>(flags, &flags->shape), "the model's sequence");
  add_integer(command, "--prompt-tokens", flags->shape.prompt_tokens, 1, generation_output_detail::most_positions,
              "With --generate: tokens of the prompt, read at once (all of --context but one)");
}

void plan_generation(const CLI::App& command, const GenerationFlags& flags, const models::Setup& setup,
                     memory::Device device, std::size_t budget_bytes, bool is_json) {
  using namespace generation_output_detail;
  require_flags(command, of_generation, "a training step", "--generate");
  models::GenerationShape shape = flags.shape;
  shape.setup = setup;
  if (command.get_option("--batch")->count() == 0) shape.setup.batch = 1;
  const models::GenerationPlan plan = models::plan_generation(shape, device);
  is_json ? print_generation_json(plan, device, budget_bytes) : print_generation_table(plan, budget_bytes);
  if (budget_bytes > 0 && plan.peak_bytes > budget_bytes) {
    throw models::refuse_generation(plan, device, budget_bytes);
  }
}

}  // namespace thimble::bench
