#include <thimble/bench/report/experiment.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::report {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw ValueError("report: " + where + ": " + why);
}

bool is_file_name(const std::string& name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

// Names of one kind, each once.
class Names {
 public:
  Names(std::string where, const char* kind) : where_(std::move(where)), kind_(kind) {}
  void add(const std::string& name) {
    if (!taken_.insert(name).second) refuse(where_, std::string(kind_) + " \"" + name + "\" appears twice");
  }
  bool has(const std::string& name) const { return taken_.count(name) != 0; }

 private:
  std::string where_;
  const char* kind_;
  std::set<std::string> taken_;
};

void check_name(const std::string& where, const std::string& name, Names& names) {
  if (!is_file_name(name)) {
    refuse(where, "\"" + name + "\" is not a name of 1 to 100 lower-case letters, digits, '-' and '_'");
  }
  names.add(name);
}

void check_rows(const std::string& where, const Experiment& experiment) {
  std::set<std::string> built_in = {"config", "remainder", "compared", "no_process", "lacks"};
  for (const ByteFigure& figure : byte_figures) built_in.insert(figure.key);
  Names columns(where, "the column");
  for (const Column& column : experiment.columns) {
    if (built_in.count(column.name) != 0) refuse(where, "a column cannot be called \"" + column.name + "\"");
    columns.add(column.name);
    if (column.decimals < 0 || column.decimals > 15) {
      refuse(where, "column \"" + column.name + "\": decimals must be 0 to 15, got " + std::to_string(column.decimals));
    }
  }
  for (std::size_t i = 0; i < experiment.rows.size(); ++i) {
    const Row& row = experiment.rows[i];
    const std::string here = where + ", row " + std::to_string(i);
    Names settings(here, "the setting"), numbers(here, "the number"), figures(here, "the compared figure"),
        terms(here, "the remainder term");
    for (const Setting& setting : row.config) {
      settings.add(setting.first);
      if (columns.has(setting.first) || built_in.count(setting.first) != 0) {
        refuse(here, "a setting cannot be called \"" + setting.first + "\", which is a column");
      }
    }
    for (const auto& [name, value] : row.numbers) {
      if (!columns.has(name)) refuse(here, "the number \"" + name + "\" has no column");
      numbers.add(name);
    }
    for (const ComparedFigure& figure : row.compared) figures.add(figure.name);
    for (const auto& [name, bytes] : row.remainder) terms.add(name);
  }
}

void check_plot(const std::string& where, const Plot& plot) {
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      const auto check_axis = [&](double value, const Axis& axis) {
        if (!std::isfinite(value)) refuse(where, "series \"" + series.name + "\" has a point that is not finite");
        if (axis.scale != Scale::linear && value <= 0) {
          refuse(where, "series \"" + series.name + "\" has " + format_real(value) + " on a logarithmic axis");
        }
      };
      check_axis(point.x, plot.x);
      check_axis(point.y, plot.y);
    }
  }
}

void check_bytes(const std::string& where, const CategoryBytes& bytes) {
  for (const std::int64_t part : bytes) {
    if (part < 0) refuse(where, "negative bytes (" + std::to_string(part) + ")");
  }
}

void check_budget(const std::string& where, const std::optional<std::int64_t>& budget_bytes) {
  if (budget_bytes && *budget_bytes < 0) refuse(where, "negative budget (" + std::to_string(*budget_bytes) + ")");
}

void check_timeline(const std::string& where, const Timeline& timeline) {
  check_budget(where, timeline.budget_bytes);
  if (timeline.events.empty()) refuse(where, "a timeline without events");
  for (const Event& event : timeline.events) {
    check_bytes(where, event.bytes);
  }
}

void check_bars(const std::string& where, const Bars& bars) {
  if (bars.bars.empty()) refuse(where, "no bars");
  for (const Bar& bar : bars.bars) {
    for (const BarPart& part : bar.parts) {
      if (part.amount < 0) refuse(where, "a negative amount (" + std::to_string(part.amount) + ")");
    }
  }
}

void check_experiment(const Experiment& experiment) {
  const std::string where = "experiment \"" + experiment.name + "\"";
  check_rows(where, experiment);
  Names names(where, "the picture");
  for (const Plot& plot : experiment.plots) {
    check_name(where + ", plot", plot.name, names);
    check_plot(where + ", plot \"" + plot.name + "\"", plot);
  }
  for (const Bars& bars : experiment.bars) {
    check_name(where + ", bars", bars.name, names);
    check_bars(where + ", bars \"" + bars.name + "\"", bars);
  }
  for (const Timeline& timeline : experiment.timelines) {
    check_name(where + ", timeline", timeline.name, names);
    check_timeline(where + ", timeline \"" + timeline.name + "\"", timeline);
  }
}

void add(Tally& counts, const Experiment& experiment) noexcept {
  for (const Row& row : experiment.rows) {
    ++counts.rows;
    const Match compared = match(row);
    counts.compared += compared != Match::unknown ? 1 : 0;
    counts.equal += compared == Match::equal ? 1 : 0;
    const auto unnamed = unnamed_bytes(row);
    counts.with_theory += unnamed.has_value() ? 1 : 0;
    counts.named += unnamed == 0 ? 1 : 0;
    counts.ran += row.measured_bytes ? 1 : 0;
    const bool has_process = row.process_peak_bytes && row.process_promise_bytes;
    counts.with_process += has_process ? 1 : 0;
    counts.within += has_process && *row.process_peak_bytes <= *row.process_promise_bytes ? 1 : 0;
    counts.lacking += row.lacks.empty() ? 0 : 1;
  }
  counts.empty += experiment.rows.empty() ? 1 : 0;
}

void remember(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

}  // namespace

Match match(const Row& row) noexcept {
  const bool is_measured = row.predicted_bytes && row.measured_bytes;
  if (!is_measured && row.compared.empty()) return Match::unknown;
  bool is_equal = !is_measured || *row.predicted_bytes == *row.measured_bytes;
  for (const ComparedFigure& figure : row.compared) is_equal = is_equal && figure.predicted == figure.measured;
  return is_equal ? Match::equal : Match::different;
}

std::optional<std::int64_t> unnamed_bytes(const Row& row) noexcept {
  if (!row.theory_bytes || !row.predicted_bytes) return std::nullopt;
  std::int64_t rest = *row.predicted_bytes - *row.theory_bytes;
  for (const auto& [name, bytes] : row.remainder) rest -= bytes;
  return rest;
}

std::optional<std::int64_t> difference(const Row& row) noexcept {
  if (!row.predicted_bytes || row.measured_bytes == row.predicted_bytes) return std::nullopt;
  return row.measured_bytes ? std::optional(*row.measured_bytes - *row.predicted_bytes) : std::nullopt;
}

std::string different_figure(const Row& row) {
  for (const ComparedFigure& figure : row.compared) {
    if (figure.predicted != figure.measured) return figure.name;
  }
  return "";
}

std::string process_absence(const Row& row) {
  if (row.process_peak_bytes) return "";
  return row.measured_bytes ? row.no_process : "nothing ran";
}

Tally tally(const Experiment& experiment) noexcept {
  Tally counts;
  add(counts, experiment);
  return counts;
}

Tally tally(const Report& report) noexcept {
  Tally counts;
  for (const Experiment& experiment : report.experiments) add(counts, experiment);
  return counts;
}

bool holds(const Tally& tally) noexcept {
  return tally.rows > 0 && tally.empty == 0 && tally.equal == tally.compared && tally.named == tally.with_theory &&
         tally.within == tally.with_process;
}

std::vector<std::string> config_keys(const Experiment& experiment) {
  std::vector<std::string> keys;
  for (const Row& row : experiment.rows) {
    for (const Setting& setting : row.config) remember(keys, setting.first);
  }
  return keys;
}

std::vector<std::string> remainder_names(const Experiment& experiment) {
  std::vector<std::string> names;
  for (const Row& row : experiment.rows) {
    for (const auto& [name, bytes] : row.remainder) remember(names, name);
  }
  return names;
}

const Setting* find_setting(const Row& row, const std::string& key) noexcept {
  for (const Setting& setting : row.config) {
    if (setting.first == key) return &setting;
  }
  return nullptr;
}

std::optional<double> find_number(const Row& row, const std::string& name) noexcept {
  for (const auto& [number_name, value] : row.numbers) {
    if (number_name == name) return value;
  }
  return std::nullopt;
}

void check(const Plot& plot) { check_plot("plot \"" + plot.name + "\"", plot); }

void check(const Bars& bars) { check_bars("bars \"" + bars.name + "\"", bars); }

void check(const Timeline& timeline) { check_timeline("timeline \"" + timeline.name + "\"", timeline); }

void check(const Experiment& experiment) {
  Names names("report", "the experiment");
  check_name("experiment", experiment.name, names);
  check_experiment(experiment);
}

void check(const Report& report) {
  const Environment& environment = report.environment;
  Names keys("environment", "the entry"), names("report", "the experiment");
  for (const char* const key : {"version", "device", "cpu", "threads", "date"}) keys.add(key);
  for (const auto& [key, value] : environment.details) {
    keys.add(key);
  }
  for (const Experiment& experiment : report.experiments) {
    check_name("experiment", experiment.name, names);
    check_experiment(experiment);
  }
}

}  // namespace thimble::report
