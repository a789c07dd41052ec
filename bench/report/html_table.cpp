#include <thimble/bench/report/html_table.h>

#include <algorithm>
#include <cmath>

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
  std::size_t columns = 0;
  const auto heading = [&columns](const std::string& text, bool is_right_aligned = true) {
    ++columns;
    return std::string("<th scope=\"col\"") + (is_right_aligned ? " class=\"n\">" : ">") + text + "</th>";
  };

  std::string html = constants + "<div class=\"scroll\"><table class=\"rows\"><thead><tr>";
  for (const std::string& key : keys) html += heading(escape_markup(key), is_number(experiment, key));
  if (has_theory) html += heading("theory");
  if (has_predicted) html += heading("predicted");
  if (has_measured) html += heading("measured");
  if (counts.compared > 0) html += heading("measured<br>\xE2\x88\x92 predicted");
  if (counts.with_theory > 0) html += heading("predicted<br>\xE2\x88\x92 theory");
  if (has_process || says_why) html += heading("process");
  if (has_process) html += heading("promised");
  for (const Column& column : experiment.columns) html += heading(escape_markup(column.title));
  html += "</tr></thead><tbody>\n";
  for (const Row& row : experiment.rows) {
    html += "<tr>";
    for (const std::string& key : keys) html += setting_cell(find_setting(row, key), is_number(experiment, key));
    if (has_theory) html += byte_cell(row.theory_bytes);
    if (has_predicted) html += byte_cell(row.predicted_bytes);
    if (has_measured) html += byte_cell(row.measured_bytes);
    if (counts.compared > 0) html += match_cell(row);
    if (counts.with_theory > 0) html += remainder_cell(row);
    if (has_process || says_why) {
      const std::string why = process_absence(row);
      html += why.empty() ? byte_cell(row.process_peak_bytes) : number_cell(dash + (" " + escape_markup(why)));
    }
    if (has_process) html += byte_cell(row.process_promise_bytes);
    for (const Column& column : experiment.columns) {
      const auto value = find_number(row, column.name);
      html += number_cell(value ? escape_markup(format_quantity(*value, column.unit, column.decimals)) : dash);
    }
    html += "</tr>\n" + terms_row(row, columns);
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace thimble::report
