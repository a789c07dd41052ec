#include <thimble/bench/report/writers.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace writers_detail {

using nlohmann::ordered_json;

// ---- CSV ----

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (&field != &fields.front()) line += ",";
    line += csv_field(field);
  }
  return line + "\n";
}

std::string integer_field(const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : ""; }

std::vector<std::string> csv_fields(const Experiment& experiment, const Row& row) {
  std::vector<std::string> fields;
  for (const std::string& key : config_keys(experiment)) {
    const Setting* setting = find_setting(row, key);
    fields.push_back(setting == nullptr ? "" : format_setting(*setting));
  }
  for (const auto& value :
       {row.theory_bytes, row.predicted_bytes, row.measured_bytes, row.process_peak_bytes, row.process_promise_bytes}) {
    fields.push_back(integer_field(value));
  }
  for (const std::string& name : remainder_names(experiment)) {
    const auto found =
        std::find_if(row.remainder.begin(), row.remainder.end(), [&](const auto& term) { return term.first == name; });
    fields.push_back(found == row.remainder.end() ? "" : std::to_string(found->second));
  }
  for (const Column& column : experiment.columns) {
    const auto value = find_number(row, column.name);
    fields.push_back(value ? format_real(*value) : "");
  }
  return fields;
}

// ---- JSON ----

ordered_json number_json(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  // A whole number (a count, a token total) is written as one.
  if (*value == std::floor(*value) && std::abs(*value) < 9.0e15) return static_cast<std::int64_t>(*value);
  return *value;
}

ordered_json bytes_json(const std::optional<std::int64_t>& bytes) {
  return bytes ? ordered_json(*bytes) : ordered_json(nullptr);
}

ordered_json setting_json(const Setting& setting) {
  return std::visit([](const auto& value) { return ordered_json(value); }, setting.second);
}

ordered_json row_json(const Experiment& experiment, const Row& row) {
  ordered_json json;
  json["config"] = ordered_json::object();
  for (const Setting& setting : row.config) json["config"][setting.first] = setting_json(setting);
  json["theory_bytes"] = bytes_json(row.theory_bytes);
  json["predicted_bytes"] = bytes_json(row.predicted_bytes);
  json["measured_bytes"] = bytes_json(row.measured_bytes);
  json["process_peak_bytes"] = bytes_json(row.process_peak_bytes);
  json["process_promise_bytes"] = bytes_json(row.process_promise_bytes);
  if (const std::string why = process_absence(row); !why.empty()) json["no_process"] = why;
  if (!row.lacks.empty()) json["lacks"] = row.lacks;
  for (const ComparedFigure& figure : row.compared) {
    json["compared"][figure.name] = {{"predicted", figure.predicted}, {"measured", figure.measured}};
  }
  json["remainder"] = ordered_json::object();
  for (const auto& [name, bytes] : row.remainder) json["remainder"][name] = bytes;
  for (const Column& column : experiment.columns) json[column.name] = number_json(find_number(row, column.name));
  return json;
}

ordered_json environment_json(const Environment& environment) {
  ordered_json json = {{"version", environment.version},
                       {"device", environment.device},
                       {"cpu", environment.cpu},
                       {"threads", environment.threads},
                       {"date", environment.date}};
  for (const auto& [key, value] : environment.details) json[key] = value;
  return json;
}

}  // namespace writers_detail

std::string write_csv(const Experiment& experiment) {
  using namespace writers_detail;
  check(experiment);
  std::vector<std::string> heading = config_keys(experiment);
  heading.insert(heading.end(),
                 {"theory_bytes", "predicted_bytes", "measured_bytes", "process_peak_bytes", "process_promise_bytes"});
  for (const std::string& name : remainder_names(experiment)) heading.push_back("remainder: " + name);
  for (const Column& column : experiment.columns) heading.push_back(column.name);
  std::string csv = csv_line(heading);
  for (const Row& row : experiment.rows) csv += csv_line(csv_fields(experiment, row));
  return csv;
}

std::string write_json(const Report& report) {
  using namespace writers_detail;
  check(report);
  ordered_json json;
  json["title"] = report.title;
  json["environment"] = environment_json(report.environment);
  json["experiments"] = ordered_json::array();
  for (const Experiment& experiment : report.experiments) {
    ordered_json rows = ordered_json::array();
    for (const Row& row : experiment.rows) rows.push_back(row_json(experiment, row));
    json["experiments"].push_back({{"name", experiment.name},
                                   {"title", experiment.title},
                                   {"question", experiment.question},
                                   {"theory", experiment.theory},
                                   {"verdict", experiment.verdict},
                                   {"rows", std::move(rows)}});
  }
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::vector<std::string> write_report(const Report& report, const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files;  // name, content: made before the first is written
  files.emplace_back("report.html", write_html(report));
  files.emplace_back("results.json", write_json(report));
  for (const Experiment& experiment : report.experiments) {
    const auto add = [&](const std::string& name, std::string svg) {
      files.emplace_back(experiment.name + "-" + name + ".svg", std::move(svg));
    };
    files.emplace_back(experiment.name + ".csv", write_csv(experiment));
    for (const Plot& plot : experiment.plots) add(plot.name, svg_plot(plot));
    for (const Bars& bars : experiment.bars) add(bars.name, svg_bars(bars));
    for (const Timeline& timeline : experiment.timelines) add(timeline.name, svg_stacked_area(timeline));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(folder, 0, "cannot make the folder for the report: " + error.message());
  std::vector<std::string> paths;
  for (const auto& [name, content] : files) {
    paths.push_back((std::filesystem::path(folder) / name).string());
    write_file_atomically(paths.back(), std::string_view(content));
  }
  return paths;
}

}  // namespace thimble::report
