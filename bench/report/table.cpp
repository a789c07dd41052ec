#include <algorithm>
#include <utility>

#include <thimble/bench/report/text.h>
#include <thimble/bench/report/writers.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace table_detail {

constexpr const char* check_mark = "\xE2\x9C\x93";
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

std::string byte_cell(const std::optional<std::int64_t>& bytes) {
  return bytes ? format_bytes(*bytes) + " (" + format_grouped(*bytes) + ")" : "";
}

/// The first of the compared figures that differs.
std::string different_figure(const Row& row) {
  for (const ComparedFigure& figure : row.compared) {
    if (figure.predicted != figure.measured) return figure.name;
  }
  return "";
}

std::string mark_cell(const Row& row) {
  switch (match(row)) {
    case Match::equal:
      return check_mark;
    case Match::different: {
      const std::int64_t difference = row.measured_bytes.value_or(0) - row.predicted_bytes.value_or(0);
      if (!row.measured_bytes || difference == 0) return different_figure(row);
      std::string text = format_grouped(difference);
      if (difference > 0) text.insert(0, 1, '+');
      return text;
    }
    case Match::unknown:
      break;
  }
  return "";
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

}  // namespace table_detail

std::string to_table(const Experiment& experiment) {
  using namespace table_detail;
  Table table;
  for (const std::string& key : config_keys(experiment)) table.add(setting_cells(experiment, key));
  const auto bytes_of = [](std::optional<std::int64_t> Row::*member) {
    return [member](const Row& row) { return byte_cell(row.*member); };
  };
  table.add(row_cells(experiment, "theory", bytes_of(&Row::theory_bytes)));
  table.add(row_cells(experiment, "predicted", bytes_of(&Row::predicted_bytes)));
  table.add(row_cells(experiment, "measured", bytes_of(&Row::measured_bytes)));
  table.add(row_cells(experiment, check_mark, mark_cell));
  table.add(row_cells(experiment, "process", [](const Row& row) {
    const std::string why = process_absence(row);
    return why.empty() ? byte_cell(row.process_peak_bytes) : std::string(dash) + " " + why;
  }));
  table.add(row_cells(experiment, "promised", bytes_of(&Row::process_promise_bytes)));
  for (const Column& column : experiment.columns) {
    table.add(row_cells(experiment, column.title, [&](const Row& row) {
      const auto value = find_number(row, column.name);
      return value ? format_quantity(*value, column.unit, column.decimals) : std::string();
    }));
  }
  return table.text(experiment.rows.size());
}

}  // namespace thimble::report
