#include <thimble/bench/report/html_table.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/page.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace html_table_detail {

constexpr const char* check_mark = "\xE2\x9C\x93";
constexpr const char* dash = "<span class=\"muted\">\xE2\x80\x93</span>";

std::string number_cell(const std::string& content) { return "<td class=\"n\">" + content + "</td>"; }

std::string byte_cell(const std::optional<std::int64_t>& bytes) {
  return bytes ? report::byte_cell(*bytes) : number_cell(dash);
}

// Whether there is something to tell between theory and prediction.
bool has_terms(const Row& row) {
  const auto unnamed = unnamed_bytes(row);
  return unnamed && (*unnamed != 0 || !row.remainder.empty());
}

std::string setting_cell(const Setting* setting, bool is_number) {
  const std::string content = setting == nullptr ? dash : escape_markup(display_setting(*setting));
  return is_number ? number_cell(content) : "<td>" + content + "</td>";
}

// measured - predicted.
std::string match_cell(const Row& row) {
  switch (match(row)) {
    case Match::equal:
      return number_cell(std::string("<span class=\"good\">") + check_mark + " equal</span>");
    case Match::different: {
      const std::int64_t difference = row.measured_bytes.value_or(0) - row.predicted_bytes.value_or(0);
      if (!row.measured_bytes || difference == 0) {
        const auto other = std::find_if(row.compared.begin(), row.compared.end(),
                                        [](const ComparedFigure& f) { return f.predicted != f.measured; });
        return number_cell("<span class=\"alarm\">" + escape_markup(other->name) + "</span>");
      }
      std::string content = "<span class=\"alarm\">" + signed_bytes(difference) + "</span>";
      if (*row.predicted_bytes != 0) {
        const double part = static_cast<double>(difference) / static_cast<double>(*row.predicted_bytes) * 100;
        const std::string sign = part < 0 ? "\xE2\x88\x92" : "+";
        const bool is_tiny = std::abs(part) < 0.01;
        content += "<small>" + (is_tiny ? "&lt; 0.01 %" : sign + format_fixed(std::abs(part), 2) + " %") + "</small>";
      }
      return number_cell(content);
    }
    case Match::unknown:
      break;
  }
  return number_cell(dash);
}

// predicted - theory; what it is made of is told in the line that `terms_row` adds.
std::string remainder_cell(const Row& row) {
  const auto unnamed = unnamed_bytes(row);
  if (!unnamed) return number_cell(dash);
  const std::int64_t difference = *row.predicted_bytes - *row.theory_bytes;
  if (!has_terms(row)) return number_cell(std::string("<span class=\"good\">") + check_mark + " equal</span>");
  const std::string mark = *unnamed == 0 ? std::string("<span class=\"good\">") + check_mark + "</span>"
                                         : std::string("<span class=\"alarm\">?</span>");
  return number_cell("<details><summary><u>" + signed_bytes(difference) + "</u> " + mark + "</summary></details>");
}

// A line below the row, shown when its details are open and on paper.
std::string terms_row(const Row& row, std::size_t columns) {
  if (!has_terms(row)) return "";
  std::string html = "<tr class=\"terms\"><td colspan=\"" + std::to_string(columns) + "\">";
  for (const auto& [name, bytes] : row.remainder) {
    html += "<span><b>" + signed_bytes(bytes) + "</b> " + escape_markup(name) + "</span> ";
  }
  if (const auto unnamed = unnamed_bytes(row); *unnamed != 0) {
    html += "<span class=\"alarm\"><b>" + signed_bytes(*unnamed) + "</b> not named</span>";
  }
  return html + "</td></tr>\n";
}

// Settings that are the same in all of several rows are told once, above the table.
bool is_constant(const Experiment& experiment, const std::string& key) {
  if (experiment.rows.size() < 2) return false;
  const Setting* first = find_setting(experiment.rows.front(), key);
  return first != nullptr && std::all_of(experiment.rows.begin(), experiment.rows.end(), [&](const Row& row) {
           const Setting* setting = find_setting(row, key);
           return setting != nullptr && setting->second == first->second;
         });
}

bool has_any(const Experiment& experiment, std::optional<std::int64_t> Row::*member) {
  return std::any_of(experiment.rows.begin(), experiment.rows.end(),
                     [&](const Row& row) { return (row.*member).has_value(); });
}

bool is_number(const Experiment& experiment, const std::string& key) {
  return std::all_of(experiment.rows.begin(), experiment.rows.end(), [&](const Row& row) {
    const Setting* setting = find_setting(row, key);
    return setting == nullptr || !std::holds_alternative<std::string>(setting->second);
  });
}

/// Of the line, or of it or the one below, as there is room.
enum class Place : std::uint8_t { row, either };
struct TableColumn {
  std::string name;  // markup
  Place place;
  std::function<std::string(const Row&)> cell;
  bool is_right_aligned;
};

// The lines of markup without its tags: <br> and <small> begin one.
std::vector<std::string> lines_of(const std::string& markup) {
  std::vector<std::string> lines(1);
  for (std::size_t at = 0; at < markup.size();) {
    if (markup[at] != '<') {
      lines.back() += markup[at++];
      continue;
    }
    const std::string_view rest = std::string_view(markup).substr(at);
    if (rest.starts_with("<br>") || rest.starts_with("<small>")) lines.emplace_back();
    at = markup.find('>', at) + 1;
  }
  return lines;
}

double width_of(const TableColumn& column, const std::vector<Row>& rows) {
  double width = 0;
  const auto widen = [&](const std::string& markup, bool is_bold) {
    for (const std::string& line : lines_of(markup)) width = std::max(width, text_width(line, 14, is_bold));
  };
  widen(column.name, true);
  for (const Row& row : rows) widen(column.cell(row), false);
  return width + 20;  // padding
}

// The columns that come into a second line of each row, so that the table is as wide as a page of paper: from the last
// on.
std::vector<TableColumn> take_what_is_too_wide(std::vector<TableColumn>& columns, const std::vector<Row>& rows) {
  constexpr double widest = 860;  // px at 14 px, which on paper are 8 pt
  double width = 0;
  for (const TableColumn& column : columns) width += width_of(column, rows);
  std::vector<TableColumn> below;
  while (width > widest && columns.back().place == Place::either) {
    width -= width_of(columns.back(), rows);
    below.insert(below.begin(), std::move(columns.back()));
    columns.pop_back();
  }
  return below;
}

std::string more_row(const Row& row, const std::vector<TableColumn>& below, std::size_t columns) {
  if (below.empty()) return "";
  std::string html = "<tr class=\"more\"><td colspan=\"" + std::to_string(columns) + "\">";
  for (const TableColumn& column : below) {
    html += "<span>" + column.name + " <b>" + lines_of(column.cell(row)).front() + "</b></span> ";
  }
  return html + "</td></tr>\n";
}

}  // namespace html_table_detail

std::string signed_bytes(std::int64_t difference) {
  std::string digits = format_grouped(difference);
  if (difference > 0) digits.insert(0, 1, '+');
  return difference < 0 ? digits.replace(0, 1, "\xE2\x88\x92") : digits;
}

std::string html_table(const Experiment& experiment) {
  using namespace html_table_detail;
  std::vector<std::string> keys;
  std::string constants;
  for (const std::string& key : config_keys(experiment)) {
    if (!is_constant(experiment, key)) {
      keys.push_back(key);
      continue;
    }
    constants += (constants.empty() ? "<p class=\"constant\">In all rows: " : ", ") + escape_markup(key) + " <b>" +
                 escape_markup(display_setting(*find_setting(experiment.rows.front(), key))) + "</b>";
  }
  if (!constants.empty()) constants += "</p>\n";
  const Tally counts = tally(experiment);
  const bool has_theory = has_any(experiment, &Row::theory_bytes);
  const bool has_predicted = has_any(experiment, &Row::predicted_bytes);
  const bool has_measured = has_any(experiment, &Row::measured_bytes);
  const bool has_process = has_any(experiment, &Row::process_peak_bytes);
  const bool says_why = std::any_of(experiment.rows.begin(), experiment.rows.end(),
                                    [](const Row& row) { return !process_absence(row).empty(); });
  std::vector<TableColumn> columns;
  const auto add = [&](const std::string& name, Place place, std::function<std::string(const Row&)> cell,
                       bool is_right_aligned = true) {
    columns.push_back({name, place, std::move(cell), is_right_aligned});
  };
  for (const std::string& key : keys) {
    const bool is_right_aligned = is_number(experiment, key);
    const auto cell = [key, is_right_aligned](const Row& row) {
      return setting_cell(find_setting(row, key), is_right_aligned);
    };
    add(escape_markup(key), Place::row, cell, is_right_aligned);
  }
  if (has_theory) add("theory", Place::row, [](const Row& row) { return byte_cell(row.theory_bytes); });
  if (has_predicted) add("predicted", Place::row, [](const Row& row) { return byte_cell(row.predicted_bytes); });
  if (has_measured) add("measured", Place::row, [](const Row& row) { return byte_cell(row.measured_bytes); });
  if (counts.compared > 0) add("measured<br>\xE2\x88\x92 predicted", Place::row, match_cell);
  if (counts.with_theory > 0) add("predicted<br>\xE2\x88\x92 theory", Place::row, remainder_cell);
  for (const Column& column : experiment.columns) {
    add(escape_markup(column.title), Place::either, [&column](const Row& row) {
      const auto value = find_number(row, column.name);
      return number_cell(value ? escape_markup(format_quantity(*value, column.unit, column.decimals)) : dash);
    });
  }
  if (has_process || says_why) {
    add("process", Place::either, [](const Row& row) {
      const std::string why = process_absence(row);
      return why.empty() ? byte_cell(row.process_peak_bytes) : number_cell(dash + (" " + escape_markup(why)));
    });
  }
  if (has_process) add("promised", Place::either, [](const Row& row) { return byte_cell(row.process_promise_bytes); });
  const std::vector<TableColumn> below = take_what_is_too_wide(columns, experiment.rows);

  std::string html = constants + "<div class=\"scroll\"><table class=\"rows\"><thead><tr>";
  for (const TableColumn& column : columns) {
    html +=
        std::string("<th scope=\"col\"") + (column.is_right_aligned ? " class=\"n\">" : ">") + column.name + "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (const Row& row : experiment.rows) {
    html += "<tr>";
    for (const TableColumn& column : columns) html += column.cell(row);
    html += "</tr>\n" + more_row(row, below, columns.size()) + terms_row(row, columns.size());
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace thimble::report
