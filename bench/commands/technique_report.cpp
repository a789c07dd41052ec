#include <thimble/bench/commands/technique_report.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

/// Of a budget that no plan keeps: how many techniques would not do.
void print_others(const models::PlanReport& report) {
  const std::size_t fitting = report.techniques.size() - 1, tried = report.known_techniques - report.untried_techniques;
  if (report.is_feasible || report.known_techniques == 0) return;
  if (tried > fitting) {
    std::printf("  %zu of %zu techniques %s not fit\n", tried - fitting, report.known_techniques,
                tried - fitting == 1 ? "does" : "do");
  }
  if (report.untried_techniques > 0) {
    std::printf("  %zu of %zu were not tried, for want of time or memory; --techniques tries them all\n",
                report.untried_techniques, report.known_techniques);
  }
}

}  // namespace

std::string techniques_json_text(const models::PlanReport& report) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::LeverPrice& price : report.techniques) {
    nlohmann::ordered_json entry{{"flags", with_flags(price.options)},
                                 {"minimum_feasible_bytes", price.minimum_bytes},
                                 {"time_overhead", price.time_overhead}};
    if (price.time_overhead_in_budget) entry["time_overhead_in_budget"] = *price.time_overhead_in_budget;
    if (!price.note.empty()) entry["note"] = price.note;
    list.push_back(std::move(entry));
  }
  return list.dump();
}

void print_techniques(const models::PlanReport& report, bool has_all) {
  std::vector<std::string> names;
  int width = 34;
  for (const nn::LeverPrice& price : report.techniques) {
    names.push_back(price.options.empty() ? "(as it is)" : with_flags(price.options));
    width = std::max(width, static_cast<int>(names.back().size()));
  }
  std::printf("what one more technique would allow (time over a step that keeps everything, without any of them)\n");
  std::printf("  %-*s %18s  %10s  %10s  %10s\n", width, "with", "smallest bytes", "", "at time", "in budget");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const nn::LeverPrice& price = report.techniques[i];
    const std::string in_budget =
        price.time_overhead_in_budget ? report::format_percent(*price.time_overhead_in_budget) : "-";
    std::printf("  %-*s %18s  %10s  %10s  %10s%s%s\n", width, names[i].c_str(),
                format_grouped(price.minimum_bytes).c_str(), format_bytes(price.minimum_bytes).c_str(),
                report::format_percent(price.time_overhead).c_str(), in_budget.c_str(), price.note.empty() ? "" : "  ",
                price.note.c_str());
  }
  if (!has_all) print_others(report);
}

}  // namespace thimble::bench
