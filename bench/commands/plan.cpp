// thimble plan: what a run needs, told by dry runs, and how it fits a budget.

#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/planning.h>
#include <thimble/bench/units.h>
#include <thimble/core/context.h>

namespace thimble::bench {
namespace plan_detail {

nlohmann::ordered_json segments_of(const PlanReport& report) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PlannedSegment& segment : report.segments) {
    list.push_back({{"first_node", segment.first},
                    {"end_node", segment.end},
                    {"depth", segment.depth},
                    {"path", segment.path},
                    {"kept_bytes", segment.kept_bytes},
                    {"nodes_dropped", segment.dropped}});
  }
  return list;
}

void print_json(const PlanReport& report) {
  nlohmann::ordered_json by_category;
  for (std::size_t i = 0; i < category_count; ++i) {
    by_category[std::string(to_string(static_cast<Category>(i)))] = report.plan.peak_by_category[i];
  }
  nlohmann::ordered_json json{{"parameters", report.parameters},
                              {"batch", report.batch},
                              {"peak_bytes", report.plan.peak_bytes},
                              {"peak_by_category", by_category},
                              {"lower_bound_bytes", report.plan.lower_bound_bytes}};
  if (report.budget_bytes > 0) {
    json["budget_bytes"] = report.budget_bytes;
    json["feasible"] = report.is_feasible;
  }
  json["minimum_feasible_bytes"] = report.minimum_bytes;
  json["keep_everything_bytes"] = report.keep_everything_bytes;
  json["time_overhead"] = report.plan.time_overhead;
  json["step_seconds"] = report.plan.step_s;
  json["cost_model"] = report.cost_model;
  json["segments"] = segments_of(report);
  json["plan_ms"] = report.ms;
  std::cout << json.dump(2) << "\n";
}

void print_line(const std::string& name, std::size_t bytes) {
  std::printf("  %-24s %18s  %14s\n", name.c_str(), format_grouped(static_cast<std::int64_t>(bytes)).c_str(),
              format_bytes(static_cast<std::int64_t>(bytes)).c_str());
}

void print_table(const Setup& setup, const PlanReport& report) {
  std::printf("%s, batch %lld: %s parameters\n", setup.model.c_str(), static_cast<long long>(report.batch),
              format_grouped(report.parameters).c_str());
  if (report.budget_bytes > 0) print_line("budget", report.budget_bytes);
  print_line("peak (committed)", report.plan.peak_bytes);
  print_line("lower bound (load)", report.plan.lower_bound_bytes);
  print_line("keeping everything", report.keep_everything_bytes);
  print_line("smallest possible", report.minimum_bytes);
  std::printf("live bytes at the peak, by category\n");
  for (std::size_t i = 0; i < category_count; ++i) {
    if (report.plan.peak_by_category[i] > 0) {
      print_line(std::string(to_string(static_cast<Category>(i))), report.plan.peak_by_category[i]);
    }
  }
  if (!report.segments.empty()) {
    std::printf("segments that backward runs again, in part or whole\n");
    std::printf("  %-9s %-44s %16s  %s\n", "nodes", "from", "kept bytes", "dropped");
    for (const PlannedSegment& s : report.segments) {
      const std::string nodes = std::to_string(s.first) + "-" + std::to_string(s.end - 1);
      std::printf("  %-9s %-44s %16s  %zu of %u nodes\n", nodes.c_str(),
                  (std::string(static_cast<std::size_t>(2 * s.depth), ' ') + s.path).c_str(),
                  format_grouped(static_cast<std::int64_t>(s.kept_bytes)).c_str(), s.dropped, s.end - s.first);
    }
  }
  std::printf("time: %.1f %% over keeping everything, by the cost model '%s'\n", 100 * report.plan.time_overhead,
              report.cost_model.c_str());
  std::printf("planned in %.1f ms\n", report.ms);
}

std::string hardware_names() {
  std::string names;
  for (const nn::Hardware& h : nn::hardware_list()) names += (names.empty() ? "" : ", ") + h.name;
  return names;
}

}  // namespace plan_detail

void add_plan(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("plan", "Tell what a run needs, and how it fits a budget");
  const auto options = std::make_shared<PlanOptions>();
  const auto is_json = std::make_shared<bool>(false);
  add_setup_flags(*command, std::shared_ptr<Setup>(options, &options->setup));
  add_size(*command, "--budget", options->budget_bytes, "Bytes that training may need (the hardware's, or no limit)");
  command->add_flag("--max-batch", options->finds_batch, "Find the largest batch for the budget");
  command->add_flag("--inference", options->is_inference, "A forward without a tape instead of a training step");
  command->add_option("--hardware", options->hardware,
                      "Machine to plan for: " + plan_detail::hardware_names() + " (cpu)");
  command->add_flag("--json", *is_json, "Print JSON");
  command->callback([options, is_json] {
    const PlanReport report = make_plan(*options);
    *is_json ? plan_detail::print_json(report) : plan_detail::print_table(options->setup, report);
    if (!report.is_feasible) throw report.why_infeasible;
  });
}

}  // namespace thimble::bench
