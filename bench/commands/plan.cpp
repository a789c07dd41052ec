// thimble plan: what a training run needs, told by a dry run.

#include <chrono>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/setup.h>
#include <thimble/bench/units.h>

namespace thimble::bench {
namespace plan_detail {

void print_json(const nn::MemoryProfile& profile, double ms) {
  nlohmann::ordered_json by_category;
  for (std::size_t i = 0; i < category_count; ++i) {
    by_category[std::string(to_string(static_cast<Category>(i)))] = profile.peak_by_category[i];
  }
  const nlohmann::ordered_json json{{"parameters", profile.parameters},
                                    {"peak_bytes", profile.peak_bytes},
                                    {"peak_by_category", by_category},
                                    {"lower_bound_bytes", profile.lower_bound_bytes},
                                    {"plan_ms", ms}};
  std::cout << json.dump(2) << "\n";
}

void print_table(const Setup& setup, const nn::MemoryProfile& profile, double ms) {
  const auto line = [](const std::string& name, std::size_t bytes) {
    std::printf("  %-24s %18s  %14s\n", name.c_str(), format_grouped(static_cast<std::int64_t>(bytes)).c_str(),
                format_bytes(static_cast<std::int64_t>(bytes)).c_str());
  };
  std::printf("%s, batch %lld: %s parameters\n", setup.model.c_str(), static_cast<long long>(setup.batch),
              format_grouped(profile.parameters).c_str());
  line("peak (committed)", profile.peak_bytes);
  line("lower bound (load)", profile.lower_bound_bytes);
  std::printf("live bytes at the peak, by category\n");
  for (std::size_t i = 0; i < category_count; ++i) {
    if (profile.peak_by_category[i] > 0) {
      line(std::string(to_string(static_cast<Category>(i))), profile.peak_by_category[i]);
    }
  }
  std::printf("planned in %.1f ms\n", ms);
}

}  // namespace plan_detail

void add_plan(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("plan", "Tell what a training run needs, by a dry run");
  const auto setup = std::make_shared<Setup>();
  const auto is_json = std::make_shared<bool>(false);
  add_setup_flags(*command, setup);
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([setup, is_json] {
    const auto start = std::chrono::steady_clock::now();
    const nn::MemoryProfile profile = nn::profile_training(dry(cpu), training_run(*setup));
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    *is_json ? plan_detail::print_json(profile, ms.count()) : plan_detail::print_table(*setup, profile, ms.count());
  });
}

}  // namespace thimble::bench
