// The runner.

#include <thimble/bench/experiments/experiments.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include <stdlib.h>

#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/dist/threads.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/pack_rules.h>

namespace thimble::bench {

ProcessBytes process_bytes(const nn::MemoryProfile& profile) {
  return {profile.peak_bytes, profile.outside, profile.process_peak_bytes};
}

ProcessBytes process_bytes(const models::TrainReport& report) {
  return {report.measured_peak_bytes, report.outside, report.process_peak_bytes};
}

PartWatch::PartWatch(memory::Device device) {
  if (device == cpu) watch_.emplace();
}

ProcessBytes PartWatch::bytes(const memory::Arena& arena, std::size_t nodes) const {
  ProcessBytes bytes;
  bytes.arena_bytes = arena.statistics().peak_committed_bytes;
  if (!watch_) return bytes;
  bytes.outside = memory::outside_bytes(watch_->base(), {.threads = thread_count(), .nodes = nodes});
  bytes.peak_bytes = watch_->peak_bytes();
  return bytes;
}

void add_process(report::Row& row, std::size_t predicted_bytes, const ProcessBytes& measured) {
  if (row.process_peak_bytes && measured.peak_bytes == 0) return;
  if (measured.outside.total() == 0) {
    row.no_process = "the host's bytes are not those of a run on a GPU";
  } else if (measured.peak_bytes == 0) {
    row.no_process = "the kernel does not reset the peak";
  } else {
    const auto peak = static_cast<std::int64_t>(measured.peak_bytes);
    const auto promise = static_cast<std::int64_t>(predicted_bytes + measured.outside.total());
    if (row.process_peak_bytes && *row.process_promise_bytes - *row.process_peak_bytes <= promise - peak) return;
    row.process_peak_bytes = peak;
    row.process_promise_bytes = promise;
  }
}

namespace {

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

}  // namespace

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
  for (const PlotOfRows& plot : table.plots) add_curves(plot, experiment);
  return experiment;
}

report::Row& Rows::add(Config config, const Figures& figures) {
  report::Row& row = experiment.rows.emplace_back();
  row.config = std::move(config);
  row.theory_bytes = figures.theory;
  row.predicted_bytes = figures.predicted;
  row.measured_bytes = figures.measured;
  row.remainder = figures.remainder;
  row.numbers = figures.numbers;
  for (const auto& [name, predicted, measured] : figures.compared) row.compared.push_back({name, predicted, measured});
  row.no_process = figures.no_process;
  row.lacks = figures.lacks;
  for (const auto& [predicted, process] : figures.processes) add_process(row, predicted, process);
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

models::Setup setup_of(const std::string& model, std::int64_t batch, const models::ModelOptions& sizes,
                       const std::string& optimizer) {
  models::Setup setup;
  setup.model = model, setup.batch = batch, setup.sizes = sizes, setup.optimizer.name = optimizer;
  return setup;
}

models::RunOptions generated_training(const ExperimentOptions& options, const std::string& model,
                                      std::int64_t quick_steps, std::int64_t steps) {
  models::RunOptions train;
  train.setup.model = model, train.data = "synthetic", train.device = options.device;
  train.steps = options.is_quick ? quick_steps : steps;
  train.schedule = "cosine", train.warmup = train.steps / 10;
  return train;
}

models::RunOptions text_training(const ExperimentOptions& options, const std::string& model, const TextSizes& sizes,
                                 std::int64_t quick_steps, std::int64_t steps) {
  models::RunOptions train = generated_training(options, model, quick_steps, steps);
  train.setup.batch = sizes.batch;
  train.setup.sizes = {
      .sequence = sizes.sequence, .layers = sizes.layers, .heads = sizes.heads, .width = sizes.width, .dropout = 0};
  return train;
}

nn::Plan packing_plan(const nn::MakeRun& make, memory::Device device, const std::string& saved) {
  if (saved.empty()) return {};
  nn::SpillPolicy spilling;
  spilling.packs = true;
  spilling.packed = parse_dtype(saved);
  return nn::packed_plan(make, device, spilling);
}

void pack_saved(models::Engine& engine, const std::string& saved) {
  if (!saved.empty()) engine.follow(packing_plan(engine.runs(), engine.options().device, saved));
}

nn::MakeRun planned_run(const nn::MakeRun& make, const nn::Plan& plan) {
  return [make, plan](memory::Device device) {
    std::unique_ptr<nn::TrainingRun> run = make(device);
    plan.apply(run->options(), device);
    return run;
  };
}

double validation_loss(const models::TrainReport& result) {
  return result.evaluation ? result.evaluation->loss : std::numeric_limits<double>::quiet_NaN();
}

Figures training_figures(const models::TrainReport& result) {
  return {.predicted = result.predicted_peak_bytes,
          .measured = result.measured_peak_bytes,
          .numbers = {{"loss_last", result.loss_last}, {"validation_loss", validation_loss(result)}},
          .processes = {{result.predicted_peak_bytes, process_bytes(result)}}};
}

models::TrainReport run_on_ranks(const models::RunOptions& options) {
  models::TrainReport report;
  dist::run_ranks(options.setup.layout.ranks, [&](dist::Communicator& ranks) {
    models::RunOptions own = options;
    own.ranks = &ranks;
    own.setup.layout.rank = ranks.rank();
    models::TrainReport of_rank = models::Engine(own).run();
    if (ranks.rank() == 0) report = std::move(of_rank);
  });
  return report;
}

std::size_t least_budget(models::RunOptions options) {
  std::size_t least = 0;
  options.budget_bytes = 1;
  for (const std::vector<int>& alike : models::alike_ranks(options.setup, options.device)) {
    options.setup.layout.rank = alike.front();
    try {
      models::Engine(options).plan();
    } catch (const nn::BudgetError& error) {
      least = std::max(least, error.minimum_bytes());
    }
  }
  return least;
}

Figures rank_figures(const models::TrainReport& result, std::int64_t steps) {
  Figures figures{.no_process = "its ranks are threads of one process"};
  std::size_t predicted = 0, measured = 0;
  double sent = 0;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    const auto& rank = result.ranks[r];
    predicted += rank.predicted_peak_bytes;
    measured += rank.measured_peak_bytes;
    figures.compared.push_back({"rank " + std::to_string(r), rank.predicted_peak_bytes, rank.measured_peak_bytes});
    sent += static_cast<double>(rank.sent_bytes);
  }
  figures.predicted = predicted;
  figures.measured = measured;
  figures.numbers = {{"sent", sent / static_cast<double>(steps)}, {"loss_last", result.loss_last}};
  return figures;
}

Folder::Folder() : path_((std::filesystem::temp_directory_path() / "thimble-rows-XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) throw FileError(path_, 0, "cannot make this folder");
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string with_sign(double value, int decimals) {
  return (value < 0 ? "" : "+") + report::format_fixed(value, decimals);
}

}  // namespace thimble::bench
