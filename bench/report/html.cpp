// report.html: one page that needs nothing beside itself.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/bench/report/experiment.h>
#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/page.h>
#include <thimble/bench/report/palette.h>
#include <thimble/bench/report/text.h>
#include <thimble/bench/report/writers.h>
#include <thimble/memory/units.h>

namespace thimble::report {

// ---- The rows of an experiment as an HTML table.

/// A <table>: settings, the three byte figures (exact, with binary units below), measured - predicted (a check where it
/// is 0), predicted - theory with its named terms, further columns. Columns without any value are left out.
std::string html_table(const Experiment& experiment);

namespace {

constexpr const char* muted_dash = "<span class=\"muted\">\xE2\x80\x93</span>";

std::string number_cell(const std::string& content) { return "<td class=\"n\">" + content + "</td>"; }

std::string byte_cell_or_dash(const std::optional<std::int64_t>& bytes) {
  return bytes ? byte_cell(*bytes) : number_cell(muted_dash);
}

// Whether there is something to tell between theory and prediction.
bool has_terms(const Row& row) {
  const auto unnamed = unnamed_bytes(row);
  return unnamed && (*unnamed != 0 || !row.remainder.empty());
}

std::string setting_cell(const Setting* setting, bool is_number) {
  const std::string content = setting == nullptr ? muted_dash : escape_markup(display_setting(*setting));
  return is_number ? number_cell(content) : "<td>" + content + "</td>";
}

std::string equal_cell() { return number_cell(std::string("<span class=\"good\">") + check_mark + " equal</span>"); }

// measured - predicted.
std::string match_cell(const Row& row) {
  if (match(row) == Match::unknown) return number_cell(muted_dash);
  if (match(row) == Match::equal) return equal_cell();
  const auto bytes = difference(row);
  std::string content =
      "<span class=\"alarm\">" + (bytes ? signed_bytes(*bytes) : escape_markup(different_figure(row))) + "</span>";
  if (bytes && *row.predicted_bytes != 0) {
    const double part = static_cast<double>(*bytes) / static_cast<double>(*row.predicted_bytes) * 100;
    const std::string sign = part < 0 ? "\xE2\x88\x92" : "+";
    const bool is_tiny = std::abs(part) < 0.01;
    content += "<small>" + (is_tiny ? "&lt; 0.01 %" : sign + format_fixed(std::abs(part), 2) + " %") + "</small>";
  }
  return number_cell(content);
}

// predicted - theory; `terms_row` lists its terms.
std::string remainder_cell(const Row& row) {
  const auto unnamed = unnamed_bytes(row);
  if (!unnamed) return number_cell(muted_dash);
  const std::int64_t difference = *row.predicted_bytes - *row.theory_bytes;
  if (!has_terms(row)) return equal_cell();
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

std::string count_text(std::size_t count, const char* one, const char* many) {
  return format_grouped(count) + " " + (count == 1 ? one : many);
}

std::string section_link(const Experiment& experiment) {
  return "<a href=\"#" + experiment.name + "\">" + escape_markup(experiment.title) + "</a>";
}

// A check where all compared rows agree, a cross where one differs, a dot where nothing was compared.
std::string status_mark(const Tally& counts) {
  if (counts.compared == 0) return "<span class=\"mark muted\">\xC2\xB7</span>";
  if (counts.equal == counts.compared) return "<span class=\"mark good\">\xE2\x9C\x93</span>";
  return "<span class=\"mark alarm\">\xE2\x9C\x95</span>";
}

std::string navigation(const Report& report) {
  std::string html = "<nav aria-label=\"Experiments\"><b>Experiments</b><ol>\n";
  for (const Experiment& experiment : report.experiments) {
    html += "<li><a href=\"#" + experiment.name + "\">" + status_mark(tally(experiment)) + "<span>" +
            escape_markup(experiment.title) + "</span></a></li>\n";
  }
  return html + "</ol></nav>\n";
}

// ---- The head of the page ----

std::string meter(std::size_t part, std::size_t whole) {
  if (whole == 0) return "";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return "<span class=\"meter\"><i style=\"width:" + format_trimmed(percent, 2) + "%\"></i></span>";
}

std::string stats(const Report& report) {
  const Tally counts = tally(report);
  const Environment& environment = report.environment;
  std::string html = "<dl class=\"stats\">\n";
  html += stat_card("configurations", format_grouped(counts.rows),
                    "in " + count_text(report.experiments.size(), "experiment", "experiments"));
  html += stat_card(
      "measured = predicted",
      counts.compared == 0 ? "\xE2\x80\x93" : format_grouped(counts.equal) + " of " + format_grouped(counts.compared),
      counts.compared == 0 ? "nothing was measured" : meter(counts.equal, counts.compared));
  if (counts.with_theory > 0) {
    html += stat_card("theory explains every byte",
                      format_grouped(counts.named) + " of " + format_grouped(counts.with_theory),
                      meter(counts.named, counts.with_theory));
  }
  std::string machine = escape_markup(environment.cpu);
  if (environment.threads > 0) {
    machine +=
        (machine.empty() ? "" : ", ") + count_text(static_cast<std::size_t>(environment.threads), "thread", "threads");
  }
  html += stat_card("device", escape_markup(environment.device), machine, true);
  return html + "</dl>\n";
}

std::string dateline(const Environment& environment) {
  std::string text = escape_markup(environment.date);
  if (!environment.version.empty()) {
    text += (text.empty() ? "" : " \xC2\xB7 ") + std::string("Thimble ") + escape_markup(environment.version);
  }
  return text.empty() ? text : "<p class=\"kicker\">" + text + "</p>";
}

std::string headline(const Report& report) {
  const Tally counts = tally(report);
  std::string html = "<p class=\"lead\">";
  if (counts.compared == 0) {
    html += "No configuration has both a predicted and a measured peak, so there is nothing to compare yet.";
  } else if (counts.compared == 1 && counts.equal == 1) {
    html += "In the one configuration that was run, the measured peak is the predicted one, to the byte.";
  } else if (counts.equal == counts.compared) {
    html += "In every one of the " + count_text(counts.compared, "configuration", "configurations") +
            " that were run, the measured peak is the predicted one, to the byte.";
  } else {
    html += "In " + format_grouped(counts.equal) + " of the " +
            count_text(counts.compared, "configuration", "configurations") +
            " that were run, the measured peak is the predicted one, to the byte. The others are in ";
    std::string links;
    for (const Experiment& experiment : report.experiments) {
      const Tally part = tally(experiment);
      if (part.equal < part.compared) links += (links.empty() ? "" : ", ") + section_link(experiment);
    }
    html += links + ".";
  }
  return html + "</p>\n";
}

// Labels of the categories that pictures show.
std::set<std::string_view> categories_shown(const Report& report) {
  std::set<std::string_view> shown;
  for (const Experiment& experiment : report.experiments) {
    for (const Bars& bars : experiment.bars) {
      for (const Bar& bar : bars.bars) {
        for (const BarPart& part : bar.parts) {
          if (part.amount > 0) shown.insert(part.name);
        }
      }
    }
    for (const Timeline& timeline : experiment.timelines) {
      for (const Event& event : timeline.events) {
        for (std::size_t i = 0; i < event.bytes.size(); ++i) {
          if (event.bytes[i] > 0) shown.insert(label_of(static_cast<memory::Category>(i)));
        }
      }
    }
  }
  return shown;
}

std::string reading_guide(const Report& report) {
  std::string html = R"(<div class="card"><h3>How to read this page</h3>
<dl class="terms">
<div><dt>theory</dt><dd>The closed formula, evaluated for the configuration. What it leaves out is listed term by term.</dd></div>
<div><dt>predicted</dt><dd>The peak of a dry run: the same code with every allocation and no arithmetic, before the first step.</dd></div>
<div><dt>measured</dt><dd>The peak of the real run: what the arena had to commit.</dd></div>
</dl>
)";
  const std::set<std::string_view> shown = categories_shown(report);
  if (!shown.empty()) {
    html += "<ul class=\"chips\">";
    for (const memory::Category category : stacking_order) {
      if (shown.count(label_of(category)) == 0) continue;
      html += "<li><span class=\"swatch\" style=\"background:var(--" + std::string(paint_of(category).name) +
              ")\"></span>" + std::string(label_of(category)) + "</li>";
    }
    html += "</ul>";
  }
  return html + "</div>\n";
}

std::string overview(const Report& report) {
  std::string html =
      "<div class=\"card scroll\"><table class=\"overview\"><thead><tr><th scope=\"col\">experiment</th>"
      "<th scope=\"col\">question</th><th class=\"n\" scope=\"col\">measured = predicted</th></tr></thead><tbody>\n";
  for (const Experiment& experiment : report.experiments) {
    const Tally counts = tally(experiment);
    const std::string result = counts.compared == 0 ? "<span class=\"muted\">not measured</span>"
                                                    : format_grouped(counts.equal) + " of " +
                                                          format_grouped(counts.compared) + " " + status_mark(counts);
    html += "<tr><td>" + section_link(experiment) + "</td><td>" + escape_markup(experiment.question) +
            "</td><td class=\"n\">" + result + "</td></tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// ---- An experiment ----

std::string findings(const Experiment& experiment) {
  const Tally counts = tally(experiment);
  std::string status;
  if (counts.compared > 0) {
    status = "<p class=\"status\">" + status_mark(counts) + " measured = predicted in " + format_grouped(counts.equal) +
             " of " + count_text(counts.compared, "configuration", "configurations") + "</p>";
  }
  std::string html;
  if (!experiment.theory.empty()) {
    html += "<div class=\"card\"><p class=\"kicker\">Theory</p><p class=\"formula\">" +
            escape_except_simple_tags(experiment.theory) + "</p></div>\n";
  }
  if (!experiment.verdict.empty() || !status.empty()) {
    html += "<div class=\"card\"><p class=\"kicker\">Finding</p><p>" + escape_markup(experiment.verdict) + "</p>" +
            status + "</div>\n";
  }
  return html.empty() ? html : "<div class=\"findings\">\n" + html + "</div>\n";
}

std::string section(const Experiment& experiment) {
  std::string html = "<section id=\"" + experiment.name + "\"><h2>" + escape_markup(experiment.title) + "</h2>\n";
  if (!experiment.question.empty()) html += "<p class=\"lead\">" + escape_markup(experiment.question) + "</p>\n";
  html += findings(experiment);
  for (const Plot& plot : experiment.plots) html += figure_card(plot);
  for (const Bars& bars : experiment.bars) html += figure_card(bars);
  for (const Timeline& timeline : experiment.timelines) html += figure_card(timeline);
  if (!experiment.rows.empty()) html += "<div class=\"card\">" + html_table(experiment) + "</div>\n";
  return html + "</section>\n";
}

std::string facts(const Environment& environment) {
  std::string html =
      "<section id=\"Environment\"><h2>Where these figures come from</h2><div class=\"card\"><table class=\"facts\">";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) {
      html += "<tr><th scope=\"row\">" + escape_markup(name) + "</th><td>" + escape_markup(value) + "</td></tr>\n";
    }
  };
  add("Thimble", environment.version);
  add("device", environment.device);
  add("processor", environment.cpu);
  add("threads", environment.threads > 0 ? std::to_string(environment.threads) : "");
  add("date", environment.date);
  for (const auto& [name, value] : environment.details) add(name, value);
  return html + "</table></div></section>\n";
}

}  // namespace

std::string signed_bytes(std::int64_t difference) {
  std::string digits = format_grouped(difference);
  if (difference > 0) digits.insert(0, 1, '+');
  return difference < 0 ? digits.replace(0, 1, "\xE2\x88\x92") : digits;
}

std::string html_table(const Experiment& experiment) {
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
  const auto add_bytes = [&](const ByteFigure& figure, Place place) {
    const bool is_process = figure.bytes == &Row::process_peak_bytes;
    if (!has_any(experiment, figure.bytes) && !(is_process && says_why)) return;
    add(figure.title, place, [&figure, is_process](const Row& row) {
      const std::string why = is_process ? process_absence(row) : "";
      return why.empty() ? byte_cell_or_dash(row.*figure.bytes) : number_cell(muted_dash + (" " + escape_markup(why)));
    });
  };
  for (std::size_t i = 0; i < 3; ++i) add_bytes(byte_figures[i], Place::row);
  if (counts.compared > 0) add("measured<br>\xE2\x88\x92 predicted", Place::row, match_cell);
  if (counts.with_theory > 0) add("predicted<br>\xE2\x88\x92 theory", Place::row, remainder_cell);
  for (const Column& column : experiment.columns) {
    add(escape_markup(column.title), Place::either, [&column](const Row& row) {
      const auto value = find_number(row, column.name);
      return number_cell(value ? escape_markup(format_quantity(*value, column.unit, column.decimals)) : muted_dash);
    });
  }
  for (std::size_t i = 3; i < std::size(byte_figures); ++i) add_bytes(byte_figures[i], Place::either);
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

std::string write_html(const Report& report) {
  check(report);
  std::string html = begin_page(escape_markup(report.title)) + navigation(report);
  html += "<main>\n<header>" + dateline(report.environment) + "<h1>" + escape_markup(report.title) + "</h1>\n" +
          headline(report) + stats(report) + "</header>\n" + reading_guide(report) + overview(report);
  for (const Experiment& experiment : report.experiments) html += section(experiment);
  return html + facts(report.environment) + "</main>\n" + end_page();
}

}  // namespace thimble::report
