// Experiments: what checkpointing leaves of a transformer's activations against its depth and its sequence.

#include <thimble/bench/experiments/advice.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/remat/known.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace checkpoint_growth_detail {

models::Setup setup_of(std::int64_t layers, std::int64_t sequence, models::Build build) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 4;
  models::ModelOptions& sizes = setup.sizes;
  sizes.layers = layers, sizes.sequence = sequence, sizes.width = 64, sizes.heads = 4;
  sizes.build = build;
  return setup;
}

struct Form {
  const char* name;
  remat::ScheduleTree (*schedule)(std::size_t blocks);
};

/// Each layer under checkpoint(), the last one too.
remat::ScheduleTree each_layer(std::size_t n) {
  remat::ScheduleTree plan;
  for (std::uint32_t i = 0; i < n; ++i) {
    plan.items.push_back({i, i + 1, 0, 1});
    plan.items.push_back({i, i + 1, 0, 0});
  }
  return plan;
}

const Form forms[] = {{"keep every layer", remat::keep_all},
                      {"each layer", each_layer},
                      {"sqrt(n) layers", remat::square_root},
                      {"halves of halves", remat::recursive_halves}};

/// Bytes kept when backward begins: those outside of the layers, one result for each segment that was dropped, and
/// everything of the layers that were not.
std::int64_t theory_bytes(const models::Setup& setup, const remat::ScheduleTree& schedule) {
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.dtype);
  const auto bytes = [&](const std::vector<models::Term>& terms) {
    return models::bytes_of(terms, Category::activation, setup.batch);
  };
  std::int64_t total = bytes(theory.outside);
  for (std::size_t i = 0; i < schedule.items.size(); i += 1 + schedule.items[i].size) {
    const remat::ScheduleTree::Item& item = schedule.items[i];
    const models::LayerTheory& last = theory.layers[item.end - 1];
    total += bytes(item.is_dropped() ? models::recomputed(last) : last.kept);
  }
  return total;
}

/// Forwards of all layers together, over their number.
double runs_per_layer(const remat::ScheduleTree& schedule, std::size_t layers) {
  std::size_t runs = 0;
  for (const remat::ScheduleTree::Item& item : schedule.items) runs += item.end - item.begin;
  return static_cast<double>(runs) / static_cast<double>(layers);
}

report::Row row_of(const ExperimentOptions& options, const models::Setup& setup, const Form& form) {
  const auto layers = static_cast<std::size_t>(setup.sizes.layers);
  const remat::ScheduleTree schedule = form.schedule(layers);
  Technique technique;
  const TapeGraph graph = nn::record_step(options.device, technique_run(setup, technique));
  technique.tape = std::make_shared<TapePlan>(tape_plan_of(graph, block_cuts(graph, "gpt.h."), schedule));
  const PassBytes predicted = pass_bytes(dry(options.device), setup, technique);
  const PassBytes measured = pass_bytes(options.device, setup, technique);
  report::Row row;
  row.config = {{"checkpointed", std::string(form.name)},
                {"build", std::string(setup.sizes.build == models::Build::textbook ? "textbook" : "fused")},
                {"layers", setup.sizes.layers},
                {"sequence", setup.sizes.sequence}};
  row.theory_bytes = theory_bytes(setup, schedule);
  row.predicted_bytes = static_cast<std::int64_t>(predicted.kept);
  row.measured_bytes = static_cast<std::int64_t>(measured.kept);
  add_process(row, predicted.process.arena_bytes, measured.process);
  row.compared = {{"peak", static_cast<std::int64_t>(predicted.peak), static_cast<std::int64_t>(measured.peak)}};
  row.numbers = {{"peak", static_cast<double>(predicted.peak)},
                 {"peak_measured", static_cast<double>(measured.peak)},
                 {"runs", runs_per_layer(schedule, layers)}};
  return row;
}

std::vector<report::Column> columns() {
  return {{"peak", "peak of the pass", report::Unit::bytes},
          {"peak_measured", "the same, measured", report::Unit::bytes},
          {"runs", "forwards per layer", report::Unit::plain, 2}};
}

/// Curves of the peaks of `rows` against `x`, one for each pair of form and build.
report::Plot plot_of(const std::vector<report::Row>& rows, const char* x, const char* title) {
  report::Plot plot;
  plot.name = x;
  plot.title = title;
  plot.caption =
      "Activations and temporaries at most during one forward and backward; lines predicted, marks measured.";
  plot.x = {x, report::Unit::plain, report::Scale::log2, false};
  plot.y = {"peak of the pass", report::Unit::bytes, report::Scale::log2, false};
  for (const report::Row& row : rows) {
    const std::string group = report::format_setting(row.config[0]) + ", " + report::format_setting(row.config[1]);
    const auto at = static_cast<double>(std::get<std::int64_t>(report::find_setting(row, x)->second));
    if (plot.series.empty() || plot.series.back().group != group) {
      plot.series.push_back({group, report::Role::predicted, {}, group});
      plot.series.push_back({group + ", measured", report::Role::measured, {}, group});
    }
    plot.series[plot.series.size() - 2].points.push_back({at, *report::find_number(row, "peak")});
    plot.series.back().points.push_back({at, *report::find_number(row, "peak_measured")});
  }
  return plot;
}

/// "kept O(n), peak O(sqrt n)" of the rows of one form and build, for each of them in turn.
std::string growths(const std::vector<report::Row>& rows, const char* x) {
  std::string text;
  for (std::size_t begin = 0, end; begin < rows.size(); begin = end) {
    std::vector<report::Point> kept, peak;
    for (end = begin; end < rows.size() && rows[end].config[0] == rows[begin].config[0] &&
                      rows[end].config[1] == rows[begin].config[1];
         ++end) {
      const auto at = static_cast<double>(std::get<std::int64_t>(report::find_setting(rows[end], x)->second));
      kept.push_back({at, static_cast<double>(*rows[end].predicted_bytes)});
      peak.push_back({at, *report::find_number(rows[end], "peak")});
    }
    text += (text.empty() ? "" : "; ") + report::format_setting(rows[begin].config[0]) + " (" +
            report::format_setting(rows[begin].config[1]) + "): kept " + growth_in_words(growth_exponent(kept), x) +
            ", peak " + growth_in_words(growth_exponent(peak), x);
  }
  return text;
}

std::string equal_peaks(const std::vector<report::Row>& rows) {
  std::size_t equal = 0;
  for (const report::Row& row : rows) {
    equal += report::match(row) == report::Match::equal &&
                     report::find_number(row, "peak") == report::find_number(row, "peak_measured")
                 ? 1
                 : 0;
  }
  return "Kept and peak bytes are predicted as measured in " + std::to_string(equal) + " of " +
         std::to_string(rows.size()) + " rows.";
}

}  // namespace checkpoint_growth_detail

report::Experiment checkpoint_depth_experiment(const ExperimentOptions& options) {
  using namespace checkpoint_growth_detail;
  report::Experiment experiment;
  experiment.name = "checkpoint-depth";
  experiment.title = "Checkpointing against depth";
  experiment.question = "Does checkpointing make a transformer's activations O(sqrt n) in its number of layers n?";
  experiment.theory =
      "kept when backward begins: <i>esbh</i> for each segment that is dropped, 16<i>esbh</i> + 4<i>asb</i> + "
      "16<i>sb</i> for each layer that is not, and what is outside of the layers. Each layer a segment of its own: "
      "O(<i>n</i>), only with a smaller constant; segments of sqrt(<i>n</i>) layers: 2 sqrt(<i>n</i>) layers' worth at "
      "the peak (Chen et al. 2016, section 4.1); halves of halves: O(log <i>n</i>) for O(<i>n</i> log <i>n</i>) "
      "forwards (section 4.3).";
  experiment.columns = columns();
  std::vector<std::int64_t> depths{1, 4, 16};
  if (!options.is_quick) depths = {1, 4, 16, 64};
  for (const Form& form : forms) {
    for (const std::int64_t n : depths) {
      options.progress(std::string("checkpoint-depth: ") + form.name + ", " + std::to_string(n) + " layers");
      experiment.rows.push_back(row_of(options, setup_of(n, 64, models::Build::fused), form));
    }
  }
  experiment.plots.push_back(plot_of(experiment.rows, "layers", "Peak of one pass against depth"));
  experiment.verdict =
      "By the last three depths: " + growths(experiment.rows, "layers") + ". " + equal_peaks(experiment.rows);
  return experiment;
}

report::Experiment checkpoint_sequence_experiment(const ExperimentOptions& options) {
  using namespace checkpoint_growth_detail;
  report::Experiment experiment;
  experiment.name = "checkpoint-sequence";
  experiment.title = "Checkpointing against the sequence";
  experiment.question = "Does checkpointing make a transformer's activations linear in its sequence T?";
  experiment.theory =
      "kept when backward begins: each dropped layer <i>esbh</i>, linear in <i>s</i> = T; each other one "
      "16<i>esbh</i> + <i>eas</i><sup>2</sup><i>b</i> (textbook, no dropout) or 16<i>esbh</i> + 4<i>asb</i> (tiled "
      "attention), and 16<i>sb</i>. Backward makes one layer again at a time, with its <i>s</i><sup>2</sup> where the "
      "build has it: checkpointing divides the square by the depth and does not remove it.";
  experiment.columns = columns();
  std::vector<std::int64_t> lengths{64, 128, 256, 512};
  if (!options.is_quick) lengths = {64, 128, 256, 512, 1024};
  for (const models::Build build : {models::Build::textbook, models::Build::fused}) {
    for (const Form& form : {forms[0], forms[1]}) {
      for (const std::int64_t s : lengths) {
        options.progress(std::string("checkpoint-sequence: ") + form.name + ", T " + std::to_string(s));
        experiment.rows.push_back(row_of(options, setup_of(4, s, build), form));
      }
    }
  }
  experiment.plots.push_back(plot_of(experiment.rows, "sequence", "Peak of one pass against the sequence"));
  experiment.verdict =
      "By the last three lengths: " + growths(experiment.rows, "sequence") + ". " + equal_peaks(experiment.rows);
  return experiment;
}

}  // namespace thimble::bench
