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

namespace {

constexpr const char* dash = "\xE2\x80\x93";

struct Cells {
  std::vector<std::string> texts;  // the heading, then one per row
  bool is_right_aligned = true;
};

class Table {
 public:
  // Appends a column unless no row has anything to say in it.
  void add(Cells cells) {
    const auto begin = cells.texts.begin() + 1;
    const bool has_content =
        std::any_of(begin, cells.texts.end(), [](const std::string& text) { return !text.empty(); });
    if (has_content) columns_.push_back(std::move(cells));
  }

  std::string text(std::size_t rows) const {
    std::vector<std::string> lines(rows + 2);
    for (const Cells& column : columns_) {
      std::size_t width = 0;
      for (const std::string& cell : column.texts) width = std::max(width, display_width(cell));
      const bool is_first = &column == &columns_.front();
      for (std::size_t i = 0; i < lines.size(); ++i) {
        if (!is_first) lines[i] += "  ";
        if (i == 1) {
          for (std::size_t k = 0; k < width; ++k) lines[i] += "\xE2\x94\x80";
          continue;
        }
        const std::string& given = column.texts[i == 0 ? 0 : i - 1];
        const std::string cell = given.empty() && i > 0 ? dash : given;
        const std::string padding(width - std::min(width, display_width(cell)), ' ');
        lines[i] += column.is_right_aligned ? padding + cell : cell + padding;
      }
    }
    std::string result;
    for (std::string& line : lines) {
      line.erase(line.find_last_not_of(' ') + 1);
      result += line + "\n";
    }
    return result;
  }

 private:
  std::vector<Cells> columns_;
};

std::string bytes_text(const std::optional<std::int64_t>& bytes) {
  return bytes ? format_bytes(*bytes) + " (" + format_grouped(*bytes) + ")" : "";
}

std::string mark_cell(const Row& row) {
  if (match(row) == Match::equal) return check_mark;
  const auto bytes = difference(row);
  return bytes ? (*bytes > 0 ? "+" : "") + format_grouped(*bytes) : different_figure(row);
}

Cells setting_cells(const Experiment& experiment, const std::string& key) {
  Cells cells{{key}, true};
  for (const Row& row : experiment.rows) {
    const Setting* setting = find_setting(row, key);
    cells.texts.push_back(setting == nullptr ? "" : display_setting(*setting));
    if (setting != nullptr && std::holds_alternative<std::string>(setting->second)) cells.is_right_aligned = false;
  }
  return cells;
}

template <class ToCell>
Cells row_cells(const Experiment& experiment, std::string heading, ToCell to_cell) {
  Cells cells{{std::move(heading)}, true};
  for (const Row& row : experiment.rows) cells.texts.push_back(to_cell(row));
  return cells;
}

}  // namespace

std::string to_table(const Experiment& experiment) {
  Table table;
  for (const std::string& key : config_keys(experiment)) table.add(setting_cells(experiment, key));
  for (const ByteFigure& figure : byte_figures) {
    const bool is_process = figure.bytes == &Row::process_peak_bytes;
    if (is_process) table.add(row_cells(experiment, check_mark, mark_cell));
    table.add(row_cells(experiment, figure.title, [&](const Row& row) {
      const std::string why = is_process ? process_absence(row) : "";
      return why.empty() ? bytes_text(row.*figure.bytes) : std::string(dash) + " " + why;
    }));
  }
  for (const Column& column : experiment.columns) {
    table.add(row_cells(experiment, column.title, [&](const Row& row) {
      const auto value = find_number(row, column.name);
      return value ? format_quantity(*value, column.unit, column.decimals) : std::string();
    }));
  }
  return table.text(experiment.rows.size());
}

namespace {

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

std::vector<std::string> csv_fields(const Experiment& experiment, const Row& row) {
  std::vector<std::string> fields;
  for (const std::string& key : config_keys(experiment)) {
    const Setting* setting = find_setting(row, key);
    fields.push_back(setting == nullptr ? "" : format_setting(*setting));
  }
  for (const ByteFigure& figure : byte_figures) {
    fields.push_back(row.*figure.bytes ? std::to_string(*(row.*figure.bytes)) : "");
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

ordered_json row_json(const Experiment& experiment, const Row& row) {
  ordered_json json;
  json["config"] = ordered_json::object();
  for (const auto& [key, setting] : row.config) {
    std::visit([&json, &name = key](const auto& value) { json["config"][name] = value; }, setting);
  }
  for (const ByteFigure& figure : byte_figures) {
    const auto& bytes = row.*figure.bytes;
    json[figure.key] = bytes ? ordered_json(*bytes) : ordered_json(nullptr);
  }
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

}  // namespace

std::string write_csv(const Experiment& experiment) {
  check(experiment);
  std::vector<std::string> heading = config_keys(experiment);
  for (const ByteFigure& figure : byte_figures) heading.push_back(figure.key);
  for (const std::string& name : remainder_names(experiment)) heading.push_back("remainder: " + name);
  for (const Column& column : experiment.columns) heading.push_back(column.name);
  std::string csv = csv_line(heading);
  for (const Row& row : experiment.rows) csv += csv_line(csv_fields(experiment, row));
  return csv;
}

std::string write_json(const Report& report) {
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
    const auto add = [&](const auto& picture) {
      files.emplace_back(experiment.name + "-" + picture.name + ".svg", svg_file(picture));
    };
    files.emplace_back(experiment.name + ".csv", write_csv(experiment));
    for (const Plot& plot : experiment.plots) add(plot);
    for (const Bars& bars : experiment.bars) add(bars);
    for (const Timeline& timeline : experiment.timelines) add(timeline);
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
