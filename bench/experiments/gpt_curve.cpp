// Experiment: the bytes that GPT's layers keep for backward against the time that plans add.

#include <algorithm>

#include <thimble/bench/experiments/advice.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>
#include <thimble/models/theory.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace gpt_curve_detail {

constexpr double wanted_share = 0.15;  // 85 % fewer bytes
constexpr double allowed_overhead = 0.05;

struct Subject {
  const char* name;
  models::Setup setup;
  bool is_measured;
};

std::vector<Subject> subjects(bool is_quick) {
  std::vector<Subject> list;
  if (!is_quick) {
    Subject large{"gpt2", {}, false};  // 12 layers, width 768, T 1024
    large.setup.model = "gpt2";
    large.setup.batch = 8;
    list.push_back(large);
  }
  Subject small{"small gpt", {}, true};
  small.setup.model = "gpt2";
  small.setup.batch = is_quick ? 2 : 4;
  models::ModelOptions& sizes = small.setup.sizes;
  sizes.layers = is_quick ? 4 : 12, sizes.width = 96, sizes.heads = 4, sizes.sequence = 128, sizes.vocabulary = 500;
  list.push_back(small);
  return list;
}

/// Bytes kept at and below the layers.
std::int64_t layers_theory(const models::Setup& setup) {
  std::int64_t bytes = 0;
  for (const models::LayerTheory& layer : models::make_theory(setup.model, setup.sizes, setup.dtype).layers) {
    bytes += models::bytes_of(layer.kept, Category::activation, setup.batch);
  }
  return bytes;
}

/// Seconds of a step that keeps everything, by the cost model.
double plain_step_seconds(Device device, const models::Setup& setup) {
  return nn::step_seconds(nn::node_times(nn::record_step(device, technique_run(setup, {})), nn::hardware("cpu")));
}

/// What a setup keeps under a technique.
report::Row row_of(const ExperimentOptions& options, const Subject& subject, const models::Setup& setup,
                   const std::string& what, const Technique& technique) {
  constexpr const char* layers = "gpt.h";
  report::Row row;
  row.config = {{"model", std::string(subject.name)}, {"what", what}};
  const PassBytes predicted = pass_bytes(dry(options.device), setup, technique, layers);
  row.predicted_bytes = static_cast<std::int64_t>(predicted.kept_layers);
  if (subject.is_measured) {
    const PassBytes measured = pass_bytes(options.device, setup, technique, layers);
    row.measured_bytes = static_cast<std::int64_t>(measured.kept_layers);
    add_process(row, predicted.process.arena_bytes, measured.process);
  }
  return row;
}

/// The two builds that keep everything, then all plans from the smallest peak on.
std::vector<report::Row> rows_of(const ExperimentOptions& options, const Subject& subject) {
  std::vector<report::Row> rows;
  models::Setup textbook = subject.setup;
  textbook.sizes.build = models::Build::textbook;
  models::Setup chunked = subject.setup;
  chunked.sizes.head = models::Head::chunked;
  options.progress(std::string("gpt-curve: ") + subject.name + ", the plain builds");
  for (const models::Setup* const setup : std::initializer_list<const models::Setup*>{&textbook, &subject.setup}) {
    rows.push_back(row_of(options, subject, *setup, setup == &textbook ? "textbook build" : "fused build", {}));
    rows.back().theory_bytes = layers_theory(*setup);
    rows.back().numbers = {
        {"peak", static_cast<double>(nn::profile_training(dry(options.device), technique_run(*setup, {})).peak_bytes)}};
  }
  options.progress(std::string("gpt-curve: ") + subject.name + ", planning");
  nn::Planner planner(technique_run(chunked, {}), options.device, nn::hardware("cpu"));
  // Times are over the faster of the two heads: what the chunked one costs is the plan's to pay.
  const double of_heads =
      plain_step_seconds(options.device, chunked) / plain_step_seconds(options.device, subject.setup);
  const double base_s = planner.keep_everything().step_s / std::max(1.0, of_heads);
  for (const nn::Plan& plan : planner.plans()) {
    options.progress(std::string("gpt-curve: ") + subject.name + ", " + format_bytes(plan.peak_bytes));
    Technique technique;
    technique.tape = plan.tape;
    rows.push_back(row_of(options, subject, chunked, "budget of " + format_bytes(plan.peak_bytes), technique));
    rows.back().numbers = {{"peak", static_cast<double>(plan.peak_bytes)}, {"time_overhead", plan.step_s / base_s - 1}};
    if (!subject.is_measured) continue;
    technique.placement = plan.placement;
    const nn::MemoryProfile measured =
        nn::profile_training(options.device, technique_run(chunked, technique), 2, false, plan.placement);
    rows.back().numbers.emplace_back("peak_measured", static_cast<double>(measured.peak_bytes));
    add_process(rows.back(), plan.peak_bytes, process_bytes(measured));
  }
  for (report::Row& row : rows) {
    const auto share = [&](const report::Row& of) {
      return static_cast<double>(*row.predicted_bytes) / static_cast<double>(*of.predicted_bytes);
    };
    row.numbers.emplace_back("of_textbook", share(rows[0]));
    row.numbers.emplace_back("of_fused", share(rows[1]));
  }
  return rows;
}

report::Plot plot_of(const std::vector<report::Row>& rows) {
  report::Plot plot;
  plot.name = "curve";
  plot.title = "What the layers keep against the time that plans add";
  plot.caption = "As a share of what the textbook build's layers keep; every point is a plan.";
  plot.x = {"kept, of the textbook build", report::Unit::percent, report::Scale::linear, true};
  plot.y = {"time over keeping everything", report::Unit::percent, report::Scale::linear, true};
  for (const report::Row& row : rows) {
    const auto time = report::find_number(row, "time_overhead");
    if (!time) continue;
    const std::string model = report::format_setting(row.config[0]);
    if (plot.series.empty() || plot.series.back().name != model) {
      plot.series.push_back({model, report::Role::other, {}, ""});
    }
    plot.series.back().points.push_back({*report::find_number(row, "of_textbook"), *time});
  }
  return plot;
}

}  // namespace gpt_curve_detail

std::string gpt_curve_verdict(std::span<const CurvePoint> curve) {
  using namespace gpt_curve_detail;
  const auto percent = [](double share) { return report::format_quantity(share, report::Unit::percent, 1); };
  const CurvePoint* cheap = nullptr;  // keeps least within the allowed time
  const CurvePoint* small = nullptr;  // the fastest that keeps as little as wanted
  for (const CurvePoint& point : curve) {
    if (point.time_overhead <= allowed_overhead && (!cheap || point.of_textbook < cheap->of_textbook)) cheap = &point;
    if (point.of_textbook <= wanted_share && (!small || point.time_overhead < small->time_overhead)) small = &point;
  }
  std::string text;
  if (cheap) {
    text = "at most +5 % time: " + percent(1 - cheap->of_textbook) + " fewer bytes than the textbook build, " +
           percent(1 - cheap->of_fused) + " fewer than the fused one, at +" + percent(cheap->time_overhead);
  } else {
    text = "no plan takes at most +5 % time";
  }
  text += small ? "; 85 % fewer than the textbook build: at +" + percent(small->time_overhead)
                : "; no plan keeps 85 % fewer than the textbook build";
  text += cheap && cheap->of_textbook <= wanted_share ? ", reached." : ", not reached.";
  return text;
}

report::Experiment gpt_curve_experiment(const ExperimentOptions& options) {
  using namespace gpt_curve_detail;
  report::Experiment experiment;
  experiment.name = "gpt-curve";
  experiment.title = "What GPT's layers keep against the time of a step";
  experiment.question = "How many of the bytes that the layers keep for backward can go, at what price in time?";
  experiment.theory =
      "textbook: <i>L</i>(<i>sbh</i>(16<i>e</i> + 2) + (2<i>e</i> + 1)<i>as</i><sup>2</sup><i>b</i> + 16<i>sb</i>); "
      "fused: <i>L</i>(16<i>esbh</i> + 4<i>asb</i> + 16<i>sb</i>), with <i>e</i> = 4. Plans run the fused build with "
      "the chunked head, whose gradients are made in its forward; their time is the cost model's, over keeping "
      "everything with the faster of the two heads. The figure is what the layers keep when backward begins.";
  using report::Unit;
  experiment.columns = {{"of_textbook", "of the textbook build", Unit::percent, 1},
                        {"of_fused", "of the fused build", Unit::percent, 1},
                        {"time_overhead", "time over keeping everything", Unit::percent, 1},
                        {"peak", "peak of the step", Unit::bytes},
                        {"peak_measured", "the same, measured", Unit::bytes}};
  for (const Subject& subject : subjects(options.is_quick)) {
    const std::vector<report::Row> rows = rows_of(options, subject);
    std::vector<CurvePoint> curve;
    for (const report::Row& row : rows) {
      const auto time = report::find_number(row, "time_overhead");
      if (time)
        curve.push_back({*report::find_number(row, "of_textbook"), *report::find_number(row, "of_fused"), *time});
    }
    experiment.verdict +=
        (experiment.verdict.empty() ? "" : " ") + std::string(subject.name) + ": " + gpt_curve_verdict(curve);
    experiment.rows.insert(experiment.rows.end(), rows.begin(), rows.end());
  }
  experiment.plots.push_back(plot_of(experiment.rows));
  std::size_t equal = 0, measured = 0;
  for (const report::Row& row : experiment.rows) {
    const auto peak = report::find_number(row, "peak_measured");
    if (!peak) continue;
    ++measured;
    equal += report::match(row) == report::Match::equal && peak == report::find_number(row, "peak") ? 1 : 0;
  }
  experiment.verdict += " Kept bytes and peaks are predicted as measured in " + std::to_string(equal) + " of " +
                        std::to_string(measured) + " measured plans.";
  return experiment;
}

}  // namespace thimble::bench
