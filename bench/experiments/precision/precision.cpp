// Experiments: every precision policy beside 8-bit state and packed tensors. What they commit, where the loss goes and
// what a step takes; and the bytes of each category by theory, dry run and real run.

#include <cmath>
#include <cstdio>

#include <thimble/bench/experiments/precision/precision.h>
#include <thimble/bench/timing/processor_time.h>

namespace thimble::bench {
namespace precision_detail {

std::vector<report::Setting> settings(const PrecisionCase& one) {
  return {{"precision", one.name()}, {"optimizer", one.optimizer}, {"saved", one.saved.empty() ? "kept" : one.saved}};
}

std::string label(const PrecisionCase& one) {
  std::string text = one.name();
  if (one.optimizer != "adamw") text += ", " + one.optimizer;
  if (!one.saved.empty()) text += ", saved in " + one.saved;
  return text;
}

// The time columns of the rows, from all cases side by side.
void add_times(const ExperimentOptions& options, const std::vector<PrecisionCase>& cases,
               const std::vector<models::Setup>& setups, std::vector<report::Row>& rows) {
  std::vector<nn::MakeRun> makes;
  for (std::size_t i = 0; i < cases.size(); ++i) makes.push_back(precision_run(setups[i], cases[i], options.device));
  const std::vector<double> ms = step_processor_ms(options.device, makes, options.is_quick ? 3 : 12);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].numbers.emplace_back("ms_per_step", ms[i]);
    rows[i].numbers.emplace_back("time_change", ms[i] / ms[0] - 1);
  }
}

double number(const report::Row& row, const char* name) { return report::find_number(row, name).value(); }

std::string verdict(const report::Experiment& experiment, const std::vector<PrecisionCase>& cases) {
  const report::Row *farthest = nullptr, *smallest = nullptr;
  double most = -1;
  for (const report::Row& row : experiment.rows) {
    const double change = std::fabs(number(row, "validation_change"));
    if (std::isnan(change) || change > most) most = change, farthest = &row;
    if (smallest == nullptr || number(row, "live") < number(*smallest, "live")) smallest = &row;
  }
  const auto label_of = [&](const report::Row* row) { return label(cases[std::size_t(row - experiment.rows.data())]); };
  char text[160];
  std::snprintf(text, sizeof text, ": %.2f %% away; fewest bytes (-%.1f %%): ", 100 * most,
                100 * number(*smallest, "saving"));
  return "Farthest from the loss of O0: " + label_of(farthest) + text + label_of(smallest) + "; " +
         equal_rows(experiment) + ".";
}

}  // namespace precision_detail

report::Experiment precision_experiment(const ExperimentOptions& options) {
  using namespace precision_detail;
  report::Experiment experiment;
  experiment.name = "precision";
  experiment.title = "Every precision policy";
  experiment.question = "What does a policy commit, where does the loss go, and what does a step take?";
  experiment.theory =
      "predicted: a dry run of the training; measured: what the arena committed while it trained, in whole pages, one "
      "seed. Live: the most that is live in a step, by the dry run; a bar has it by category, precision-bytes beside "
      "formulas. The time is this machine's and says nothing of another: processor milliseconds of a step on one "
      "thread, the least of several, all rows in turn.";
  experiment.columns = {{"live", "live at most", report::Unit::bytes},
                        {"saving", "less than O0", report::Unit::percent, 1}};
  for (const report::Column& column : loss_columns(4)) experiment.columns.push_back(column);
  experiment.columns.push_back({"validation_change", "change", report::Unit::percent, 2});
  experiment.columns.push_back({"skipped", "steps skipped", report::Unit::plain, 0});
  experiment.columns.push_back({"ms_per_step", "processor ms per step", report::Unit::milliseconds, 1});
  experiment.columns.push_back({"time_change", "more time", report::Unit::percent, 0});
  report::Bars bars{"categories", "Live bytes at the peak of a step, by category", "", {}, {}};
  bars.caption = "By the dry run. What the arena commits is a little more: holes, and whole pages.";
  const std::vector<PrecisionCase> cases = precision_cases();
  std::vector<models::Setup> setups;
  for (const PrecisionCase& one : cases) {
    const models::PreparedTraining prepared = prepare_packed(precision_training(options, one), one.saved);
    options.progress("precision: " + label(one) + ", " + std::to_string(prepared.options.steps) + " steps");
    const models::TrainReport result = train(prepared);
    setups.push_back(prepared.options.setup);
    report::Row row = training_row(settings(one), result);
    row.config.emplace_back("steps", prepared.options.steps);
    const StepBytes bytes = step_bytes(dry(options.device), precision_run(prepared.options.setup, one, options.device));
    const auto live = static_cast<double>(report::total(bytes.at_peak));
    const double saving = experiment.rows.empty() ? 0 : 1 - live / number(experiment.rows.front(), "live");
    const double change =
        experiment.rows.empty() ? 0 : validation_loss(result) / number(experiment.rows.front(), "validation_loss") - 1;
    row.numbers.emplace_back("live", live);
    row.numbers.emplace_back("saving", saving);
    row.numbers.emplace_back("validation_change", change);
    if (result.scaler) row.numbers.emplace_back("skipped", static_cast<double>(result.scaler->skipped_steps));
    experiment.rows.push_back(row);
    bars.bars.push_back({label(one), bytes.at_peak});
  }
  experiment.bars.push_back(bars);
  if (options.device == cpu) add_times(options, cases, setups, experiment.rows);
  experiment.verdict = verdict(experiment, cases);
  return experiment;
}

report::Experiment precision_bytes_experiment(const ExperimentOptions& options) {
  using namespace precision_detail;
  report::Experiment experiment;
  experiment.name = "precision-bytes";
  experiment.title = "Every precision policy, category by category";
  experiment.question = "What are the bytes of a step for, under every policy?";
  experiment.theory =
      "The most bytes of a category in two steps, whenever that is: parameters and state of the optimizer from the "
      "first update on, gradients when backward ends, activations when it begins. Closed formulas of parameters, "
      "gradients, state, kept activations and the batch; none for temporaries, workspaces and packed activations. The "
      "last columns are the category's share at the moment when all live bytes together are the most.";
  experiment.columns = {{"at_peak", "at the peak, predicted", report::Unit::bytes},
                        {"at_peak_measured", "at the peak, measured", report::Unit::bytes}};
  std::size_t same = 0, figures = 0;
  for (const PrecisionCase& one : precision_cases()) {
    options.progress("precision-bytes: " + label(one));
    const models::PreparedTraining prepared = prepare_training(precision_training(options, one));
    const models::Setup& setup = prepared.options.setup;
    const nn::MakeRun make = precision_run(setup, one, options.device);
    const StepBytes predicted = step_bytes(dry(options.device), make), measured = step_bytes(options.device, make);
    for (std::size_t i = 0; i < category_count; ++i) {
      const auto category = static_cast<Category>(i);
      report::Row row;
      row.config = settings(one);
      row.config.emplace_back("category", std::string(to_string(category)));
      row.theory_bytes = precision_theory(one, setup, category);
      row.predicted_bytes = predicted.most[i];
      row.measured_bytes = measured.most[i];
      add_process(row, predicted.process.arena_bytes, measured.process);
      row.numbers = {{"at_peak", static_cast<double>(predicted.at_peak[i])},
                     {"at_peak_measured", static_cast<double>(measured.at_peak[i])}};
      experiment.rows.push_back(row);
      ++figures;
      same += predicted.at_peak[i] == measured.at_peak[i];
    }
  }
  const report::Tally tally = report::tally(experiment);
  experiment.verdict = equal_rows(experiment, "rows") + ", and at the peak in " + std::to_string(same) + " of " +
                       std::to_string(figures) + "; theory == predicted in " + std::to_string(tally.named) + " of " +
                       std::to_string(tally.with_theory) + " rows that have a formula.";
  return experiment;
}

}  // namespace thimble::bench
