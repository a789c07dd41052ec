// Experiments on the batch: what checkpointing saves at each size of it, and what it costs in micro-batches.

#include <algorithm>
#include <limits>

#include <thimble/bench/experiments/advice.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace checkpoint_batch_detail {

models::Setup setup_of(std::int64_t batch, bool is_quick) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = batch;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = 6, sizes.heads = 4, sizes.width = is_quick ? 64 : 128, sizes.sequence = is_quick ? 32 : 64;
  return setup;
}

struct Measurement {
  PassBytes predicted, measured;
  Comparison peaks;
  double ms = 0;  ///< of the fastest of a few steps
};

Measurement measure(Device device, const models::Setup& setup, const Technique& technique) {
  return {pass_bytes(dry(device), setup, technique), pass_bytes(device, setup, technique),
          compare(device, technique_run(setup, technique)), 0};
}

/// The fastest step of each run over some rounds in which they take turns, so that what else the machine does meets all
/// of them alike.
std::vector<double> fastest_ms(const ExperimentOptions& options, const std::vector<nn::MakeRun>& runs) {
  const int rounds = options.is_quick ? 2 : 6;
  std::vector<double> fastest(runs.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      fastest[i] = std::min(fastest[i], nn::profile_training(options.device, runs[i], 2).ms_per_step);
    }
  }
  return fastest;
}

/// Theory, prediction and measurement of what is kept when backward begins, and the peaks of the step.
void fill(report::Row& row, const Measurement& m) {
  row.predicted_bytes = static_cast<std::int64_t>(m.predicted.kept);
  row.measured_bytes = static_cast<std::int64_t>(m.measured.kept);
  row.compared = {{"peak", static_cast<std::int64_t>(m.peaks.predicted.peak_bytes),
                   static_cast<std::int64_t>(m.peaks.measured.peak_bytes)}};
  add_process(row, m.peaks.predicted.peak_bytes, process_bytes(m.peaks.measured));
  add_process(row, m.predicted.process.arena_bytes, m.measured.process);
  row.numbers = {{"live", static_cast<double>(m.peaks.predicted.peak_live_bytes)},
                 {"peak", static_cast<double>(m.peaks.predicted.peak_bytes)},
                 {"peak_measured", static_cast<double>(m.peaks.measured.peak_bytes)},
                 {"ms_per_step", m.ms}};
}

std::vector<report::Column> columns() {
  return {{"live", "live bytes at the step's peak", report::Unit::bytes},
          {"peak", "peak of the step", report::Unit::bytes},
          {"peak_measured", "the same, measured", report::Unit::bytes},
          {"ms_per_step", "ms per step", report::Unit::milliseconds, 1}};
}

report::Plot plot_of(const char* title, const char* x) {
  report::Plot plot;
  plot.name = "peak";
  plot.title = title;
  plot.caption = "Live bytes at the peak of a training step, predicted; lines.";
  plot.x = {x, report::Unit::plain, report::Scale::log2, false};
  plot.y = {"live bytes at the peak", report::Unit::bytes, report::Scale::log2, false};
  return plot;
}

std::string rows_with_equal_peaks(const report::Experiment& experiment) {
  const auto equal = std::count_if(experiment.rows.begin(), experiment.rows.end(),
                                   [](const report::Row& row) { return report::match(row) == report::Match::equal; });
  return "Kept bytes and peaks are predicted as measured in " + std::to_string(equal) + " of " +
         std::to_string(experiment.rows.size()) + " rows.";
}

}  // namespace checkpoint_batch_detail

std::string checkpoint_batch_verdict(std::span<const CheckpointedBatch> batches) {
  const auto saved = [](const CheckpointedBatch& b) { return 1 - b.checkpointed_bytes / b.plain_bytes; };
  const auto slower = [](const CheckpointedBatch& b) { return b.checkpointed_ms / b.plain_ms - 1; };
  const auto first = std::find_if(batches.begin(), batches.end(), [&](const auto& b) { return saved(b) > 0; });
  if (first == batches.end()) return "Checkpointing saves nothing at any of these batches.";
  std::string text = "Checkpointing saves from a batch of " + std::to_string(first->batch) + " on";
  for (const CheckpointedBatch& b : batches) {
    text += (&b == batches.data() ? ": " : ", ") + report::format_percent(saved(b)) + " at " + std::to_string(b.batch) +
            " (" + report::format_percent(slower(b)) + " slower)";
  }
  // The saving per sample is the same everywhere; what rises is its share, as the model's own bytes weigh less.
  const bool is_rising =
      std::is_sorted(batches.begin(), batches.end(), [&](const auto& a, const auto& b) { return saved(a) < saved(b); });
  const bool has_step_at_16 = first->batch == 16;
  text += is_rising ? ". The share rises with the batch" : ". The share does not rise with every batch";
  text += has_step_at_16 ? ", and 16 is where it begins: the advice holds here."
                         : ", and nothing begins at 16: the advice \"batch >= 16\" is not a rule.";
  return text;
}

report::Experiment checkpoint_batch_experiment(const ExperimentOptions& options) {
  using namespace checkpoint_batch_detail;
  report::Experiment experiment;
  experiment.name = "checkpoint-batch";
  experiment.title = "Checkpointing against the batch";
  experiment.question = "Is checkpointing worth its time only from a batch of 16 on?";
  experiment.theory =
      "kept when backward begins, for each sample: all layers, or <i>L</i> results of <i>esh</i> bytes, and what is "
      "outside of the layers. Both are linear in the batch <i>b</i>: of a peak of <i>S</i> + <i>bA</i> bytes, with the "
      "model's state <i>S</i>, checkpointing saves <i>b</i>(<i>A</i> - <i>A'</i>), a share that rises from the first "
      "sample on without a threshold, for a second forward of the layers: about a third of the time at any batch.";
  experiment.columns = columns();
  experiment.columns.push_back({"saved", "saved of the live peak", report::Unit::percent, 1});
  std::vector<CheckpointedBatch> batches;
  report::Plot plot = plot_of("Live bytes at the peak against the batch", "batch");
  plot.series = {{"keep every layer", report::Role::other, {}, ""},
                 {"each layer checkpointed", report::Role::other, {}, ""}};
  for (const std::int64_t batch : {1, 2, 4, 8, 16, 32}) {
    const models::Setup setup = setup_of(batch, options.is_quick);
    const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.dtype);
    CheckpointedBatch both{batch, 0, 0, 0, 0};
    options.progress("checkpoint-batch: " + std::to_string(batch));
    Technique plain, checkpointed;
    checkpointed.checkpoint = Checkpoint::blocks;
    const std::vector<double> ms =
        fastest_ms(options, {technique_run(setup, plain), technique_run(setup, checkpointed)});
    for (const bool is_checkpointed : {false, true}) {
      Measurement m = measure(options.device, setup, is_checkpointed ? checkpointed : plain);
      m.ms = ms[is_checkpointed ? 1 : 0];
      report::Row row;
      row.config = {{"batch", batch}, {"checkpointed", std::string(is_checkpointed ? "each layer" : "no")}};
      row.theory_bytes = theory.kept_bytes(Category::activation, batch, is_checkpointed);
      fill(row, m);
      const auto live = static_cast<double>(m.peaks.predicted.peak_live_bytes);
      (is_checkpointed ? both.checkpointed_bytes : both.plain_bytes) = live;
      (is_checkpointed ? both.checkpointed_ms : both.plain_ms) = m.ms;
      if (is_checkpointed) row.numbers.emplace_back("saved", 1 - live / both.plain_bytes);
      plot.series[is_checkpointed ? 1 : 0].points.push_back({static_cast<double>(batch), live});
      experiment.rows.push_back(row);
    }
    batches.push_back(both);
  }
  experiment.plots.push_back(plot);
  experiment.verdict = checkpoint_batch_verdict(batches) + " " + rows_with_equal_peaks(experiment);
  return experiment;
}

report::Experiment accumulation_experiment(const ExperimentOptions& options) {
  using namespace checkpoint_batch_detail;
  report::Experiment experiment;
  experiment.name = "accumulation";
  experiment.title = "Gradient accumulation";
  experiment.question = "What does a batch need when it is run in micro-batches, and what does that cost?";
  experiment.theory =
      "<i>k</i> micro-batches keep the activations of <i>b</i>/<i>k</i> samples: kept when backward begins is "
      "1/<i>k</i> of that of the batch, as an integer. State and gradients stay as they are, and so the peak falls "
      "towards them; gradients are there during every forward but the first.";
  experiment.columns = columns();
  experiment.columns.push_back({"share", "of the live peak of one batch", report::Unit::percent, 1});
  constexpr std::int64_t batch = 32;
  report::Plot plot = plot_of("Live bytes at the peak against the micro-batches", "micro-batches");
  plot.series = {{"live bytes at the peak", report::Role::other, {}, ""},
                 {"kept when backward begins", report::Role::other, {}, ""}};
  double first_live = 0;
  const models::Setup setup = setup_of(batch, options.is_quick);
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.dtype);
  std::vector<Technique> techniques;
  std::vector<nn::MakeRun> runs;
  for (const std::int64_t parts : {1, 2, 4, 8, 16, 32}) {
    techniques.emplace_back();
    techniques.back().micro_batches = parts;
    runs.push_back(technique_run(setup, techniques.back()));
  }
  options.progress("accumulation: times");
  const std::vector<double> ms = fastest_ms(options, runs);
  for (std::size_t i = 0; i < techniques.size(); ++i) {
    const std::int64_t parts = techniques[i].micro_batches;
    options.progress("accumulation: " + std::to_string(parts) + " micro-batches");
    Measurement m = measure(options.device, setup, techniques[i]);
    m.ms = ms[i];
    report::Row row;
    row.config = {{"batch", batch}, {"micro_batches", parts}};
    row.theory_bytes = theory.kept_bytes(Category::activation, batch / parts);
    fill(row, m);
    const auto live = static_cast<double>(m.peaks.predicted.peak_live_bytes);
    if (parts == 1) first_live = live;
    row.numbers.emplace_back("share", live / first_live);
    plot.series[0].points.push_back({static_cast<double>(parts), live});
    plot.series[1].points.push_back({static_cast<double>(parts), static_cast<double>(m.predicted.kept)});
    experiment.rows.push_back(row);
  }
  experiment.plots.push_back(plot);
  const report::Row &whole = experiment.rows.front(), &least = experiment.rows.back();
  const auto parts = std::get<std::int64_t>(least.config[1].second);
  const std::string times = report::format_trimmed(
      static_cast<double>(*whole.predicted_bytes) / static_cast<double>(*least.predicted_bytes), 2);
  experiment.verdict =
      "In " + std::to_string(parts) + " micro-batches the activations fall " + times + "-fold, the live peak to " +
      report::format_percent(*report::find_number(least, "share")) + ", since state and gradients stay; a step takes " +
      report::format_fixed(ms.back() / ms.front(), 2) + " times as long. " + rows_with_equal_peaks(experiment);
  return experiment;
}

}  // namespace thimble::bench
