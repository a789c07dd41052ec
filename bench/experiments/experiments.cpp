// The runner.

#include <thimble/bench/experiments/experiments.h>

#include <algorithm>

#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>

namespace thimble::bench {
namespace experiments_detail {

void add_curves(const PlotOfRows& of, report::Experiment& experiment) {
  report::Plot plot = of.plot;
  for (std::size_t i = 0; i < experiment.rows.size(); ++i) {
    const report::Row& row = experiment.rows[i];
    const std::optional<double> x = of.x.empty() ? static_cast<double>(i + 1) : value(row, of.x);
    const std::optional<std::string> name = of.name ? of.name(row) : "";
    const bool has_all = x && name && std::all_of(of.curves.begin(), of.curves.end(), [&](const auto& curve) {
                           return value(row, curve.y).has_value();
                         });
    if (!has_all) continue;
    for (const PlotOfRows::Curve& curve : of.curves) {
      const std::string title = *name + curve.suffix;
      auto series =
          std::find_if(plot.series.begin(), plot.series.end(), [&](const auto& s) { return s.name == title; });
      if (series == plot.series.end()) series = plot.series.insert(series, {title, curve.role, {}, *name});
      series->points.push_back({*x, number(row, curve.y)});
    }
  }
  experiment.plots.push_back(std::move(plot));
}

}  // namespace experiments_detail

std::vector<const ExperimentTable*> select_experiments(const std::vector<std::string>& names) {
  const auto chooses = [](const std::string& name, const ExperimentTable& e) {
    return name == "all" || e.name == name || e.name.starts_with(name + "-");
  };
  const auto& all = all_experiments();
  std::string known = "all";
  for (const ExperimentTable& e : all) known += ", " + e.name;
  for (const std::string& name : names) {
    const bool is_known = std::any_of(all.begin(), all.end(), [&](const auto& e) { return chooses(name, e); });
    if (!is_known) throw ValueError("reproduce: '" + name + "' is not one of " + known);
  }
  std::vector<const ExperimentTable*> chosen;
  for (const ExperimentTable& e : all) {
    const bool is_chosen = std::any_of(names.begin(), names.end(), [&](const auto& name) { return chooses(name, e); });
    if (names.empty() || is_chosen) chosen.push_back(&e);
  }
  return chosen;
}

report::Experiment run_experiment(const ExperimentTable& table, const ExperimentOptions& options) {
  report::Experiment experiment;
  experiment.name = table.name;
  experiment.title = table.title;
  experiment.question = table.question;
  experiment.theory = table.theory;
  experiment.columns = table.columns;
  Rows rows(options, experiment);
  experiment.verdict = table.run(rows);
  for (const PlotOfRows& plot : table.plots) experiments_detail::add_curves(plot, experiment);
  return experiment;
}

report::Row& Rows::add(Config config, const Figures& figures) {
  report::Row& row = experiment.rows.emplace_back();
  row.config = std::move(config);
  const auto bytes = [](const std::optional<Bytes>& b) { return b ? std::optional(b->value) : std::nullopt; };
  row.theory_bytes = bytes(figures.theory);
  row.predicted_bytes = bytes(figures.predicted);
  row.measured_bytes = bytes(figures.measured);
  for (const auto& [name, term] : figures.remainder) row.remainder.emplace_back(name, term.value);
  for (const auto& [name, number] : figures.numbers) row.numbers.emplace_back(name, number.value);
  for (const ComparedBytes& c : figures.compared) row.compared.push_back({c.name, c.predicted.value, c.measured.value});
  row.no_process = figures.no_process;
  row.lacks = figures.lacks;
  for (const auto& [predicted, process] : figures.processes) {
    add_process(row, static_cast<std::size_t>(predicted.value), process);
  }
  return row;
}

report::Row& Rows::add(Config config, const std::function<Figures()>& run) {
  std::string text;
  for (const report::Setting& one : config) {
    text += (text.empty() ? "" : ", ") + one.first + " " + report::format_setting(one);
  }
  say(text);
  const Figures figures = run();
  return add(std::move(config), figures);
}

std::optional<double> value(const report::Row& row, const std::string& name) {
  const auto bytes = [](const std::optional<std::int64_t>& b) {
    return b ? std::optional(static_cast<double>(*b)) : std::nullopt;
  };
  if (name == "predicted") return bytes(row.predicted_bytes);
  if (name == "measured") return bytes(row.measured_bytes);
  if (name == "theory") {
    const std::optional<std::int64_t> unnamed = report::unnamed_bytes(row);
    return unnamed ? bytes(*row.predicted_bytes - *unnamed) : std::nullopt;
  }
  if (const report::Setting* const found = report::find_setting(row, name)) {
    if (const auto* const integer = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*integer);
    if (const auto* const real = std::get_if<double>(&found->second)) return *real;
  }
  return report::find_number(row, name);
}

double number(const report::Row& row, const std::string& name) { return value(row, name).value(); }

std::string setting(const report::Row& row, const std::string& name) {
  return report::format_setting(*report::find_setting(row, name));
}

std::string count_rows(const std::vector<report::Row>& rows,
                       const std::function<bool(const report::Row&)>& is_counted) {
  return std::to_string(std::count_if(rows.begin(), rows.end(), is_counted)) + " of " + std::to_string(rows.size());
}

bool is_equal(const report::Row& row) { return report::match(row) == report::Match::equal; }
bool is_explained(const report::Row& row) { return report::unnamed_bytes(row) == 0; }

std::string explained_rows(const report::Experiment& experiment) {
  return "In " + count_rows(experiment.rows, is_explained) +
         " rows theory and the named remainder give every predicted byte.";
}

std::string equal_rows(const report::Experiment& experiment, const std::string& rows) {
  const report::Tally tally = report::tally(experiment);
  return "predicted == measured in " + std::to_string(tally.equal) + " of " + std::to_string(tally.compared) + " " +
         rows;
}

std::string equal_theory(const report::Experiment& experiment) {
  const report::Tally tally = report::tally(experiment);
  return "theory == predicted in " + std::to_string(tally.named) + " of " + std::to_string(tally.with_theory) +
         " rows that have a formula";
}

}  // namespace thimble::bench
