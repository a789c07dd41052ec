#include <thimble/bench/commands/plan_output.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

/// Counts the techniques that do not fit and the untried ones, for a budget that no plan keeps.
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

std::string to_lines(const nn::Fp8Layers& layers) {
  const auto or_none = [](const std::string& text) { return text.empty() ? std::string("nothing") : text; };
  std::string lines = "  in FP8           " + or_none(nn::fp8_paths_text(layers.layers)) + "\n";
  if (!layers.products.empty()) lines += "  its products     " + layers.products + "\n";
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const nn::Fp8Fallback& fallback : layers.fallbacks) {
    std::size_t i = 0;
    while (i < by_reason.size() && by_reason[i].first != fallback.reason) ++i;
    if (i == by_reason.size()) by_reason.push_back({fallback.reason, {}});
    by_reason[i].second.push_back(fallback.path);
  }
  for (const auto& [reason, paths] : by_reason) {
    lines += "  falls back       " + nn::fp8_paths_text(paths) + ": " + reason + "\n";
  }
  return lines + "  stays higher     " + or_none(nn::fp8_paths_text(layers.higher)) + "\n";
}

std::string to_json_text(const nn::Fp8Layers& layers) {
  nlohmann::ordered_json fallbacks = nlohmann::ordered_json::array();
  for (const nn::Fp8Fallback& f : layers.fallbacks) fallbacks.push_back({{"layer", f.path}, {"reason", f.reason}});
  const nlohmann::ordered_json json{{"layers", layers.layers},
                                    {"fallbacks", fallbacks},
                                    {"higher_precision", layers.higher},
                                    {"products", layers.products}};
  return json.dump();
}

}  // namespace thimble::bench
