#include <thimble/bench/commands/packing_report.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

nlohmann::ordered_json finite_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

std::string line(const std::string& name, std::size_t width, const nn::GradientError& e) {
  char figures[96];
  std::snprintf(figures, sizeof figures, "  %12.5g  %12.4g %%  %9.6f", e.norm, 100 * e.relative_error, e.cosine);
  return "  " + name + std::string(width - name.size(), ' ') + figures + "\n";
}

}  // namespace

void print_bytes(const std::string& name, std::size_t bytes) {
  std::printf("  %-24s %18s  %14s\n", name.c_str(), format_grouped(bytes).c_str(), format_bytes(bytes).c_str());
}

nlohmann::ordered_json categories_json(const memory::CategoryBytes& bytes) {
  nlohmann::ordered_json json;
  for (std::size_t i = 0; i < memory::category_count; ++i)
    json[std::string(to_string(static_cast<memory::Category>(i)))] = bytes[i];
  return json;
}

std::string to_json_text(const std::vector<nn::PackedResults>& packed) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const nn::PackedResults& p : packed) {
    list.push_back({{"operator", p.name},
                    {"dtype", to_string(p.dtype)},
                    {"tensors", p.tensors},
                    {"bytes", p.bytes},
                    {"packed_bytes", p.packed_bytes}});
  }
  return list.dump();
}

std::string to_json_text(const nn::GradientReport& report) {
  nlohmann::ordered_json parameters = nlohmann::ordered_json::array();
  for (const nn::GradientError& e : report.parameters) {
    parameters.push_back({{"name", e.name},
                          {"norm", finite_json(e.norm)},
                          {"relative_error", finite_json(e.relative_error)},
                          {"cosine", finite_json(e.cosine)}});
  }
  return nlohmann::ordered_json{{"loss", finite_json(report.exact_loss)},
                                {"loss_packed", finite_json(report.lossy_loss)},
                                {"relative_error", finite_json(report.all.relative_error)},
                                {"cosine", finite_json(report.all.cosine)},
                                {"parameters", parameters}}
      .dump();
}

std::string to_lines(const nn::GradientReport& report) {
  std::size_t width = 9;
  for (const nn::GradientError& e : report.parameters) width = std::max(width, e.name.size());
  char head[96];
  std::snprintf(head, sizeof head, "  %12s  %14s  %9s\n", "norm", "relative error", "cosine");
  std::string text =
      "gradients with packed tensors against those without\n  parameter" + std::string(width - 9, ' ') + head;
  for (const nn::GradientError& e : report.parameters) text += line(e.name, width, e);
  return text + line("all", width, report.all);
}

}  // namespace thimble::bench
