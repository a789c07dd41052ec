// Experiment: the bytes that GPT's layers keep for backward against the time that plans add.

#include <algorithm>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>
#include <thimble/models/theory.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace {

constexpr double wanted_share = 0.15;  // 85 % fewer bytes
constexpr double allowed_overhead = 0.05;

/// Bytes that the layers keep under a technique; small models are measured as well.
Figures kept_figures(const Rows& rows, const models::Setup& setup, const StepForm& technique, bool is_measured) {
  constexpr const char* layers = "gpt.h";
  const PassBytes predicted = pass_bytes(dry(rows.options.device), setup, technique, layers);
  Figures figures{.predicted = predicted.kept_layers};
  if (!is_measured) return figures;
  const PassBytes measured = pass_bytes(rows.options.device, setup, technique, layers);
  figures.measured = measured.kept_layers;
  figures.processes = {{predicted.process.arena_bytes, measured.process}};
  return figures;
}

Figures plain_figures(const Rows& rows, const models::Setup& setup, bool is_measured) {
  Figures figures = kept_figures(rows, setup, {}, is_measured);
  std::int64_t theory = 0;
  for (const models::LayerTheory& layer : models::make_theory(setup.model, setup.sizes, setup.precision.dtype).layers) {
    theory += models::bytes_of(layer.kept, memory::Category::activation, setup.batch);
  }
  figures.theory = theory;
  figures.numbers = {{"peak", nn::profile_training(dry(rows.options.device), technique_run(setup, {})).peak_bytes}};
  return figures;
}

Figures plan_figures(const Rows& rows, const models::Setup& setup, const nn::Plan& plan, double base_s,
                     bool is_measured) {
  StepForm technique;
  technique.tape = plan.tape;
  Figures figures = kept_figures(rows, setup, technique, is_measured);
  figures.numbers = {{"peak", plan.peak_bytes}, {"time_overhead", plan.step_s / base_s - 1}};
  if (!is_measured) return figures;
  technique.placement = plan.placement;
  const nn::MemoryProfile measured =
      nn::profile_training(rows.options.device, technique_run(setup, technique), 2, false, plan.placement);
  figures.numbers.emplace_back("peak_measured", measured.peak_bytes);
  figures.processes.emplace_back(plan.peak_bytes, process_bytes(measured));
  return figures;
}

/// Seconds of a step that keeps everything, by the cost model.
double plain_step_seconds(memory::Device device, const models::Setup& setup) {
  return nn::step_seconds(nn::node_times(nn::record_step(device, technique_run(setup, {})), nn::hardware("cpu")));
}

/// The rows of two builds that keep everything, then of all plans from the smallest peak on. Returns the plans.
std::vector<CurvePoint> add_plans(Rows& rows, const std::string& name, const models::Setup& fused, bool is_measured) {
  models::Setup textbook = fused, chunked = fused;
  textbook.sizes.build = models::Build::textbook;
  chunked.sizes.head = models::Head::chunked;
  std::vector<report::Row>& all = rows.experiment.rows;
  const std::size_t first = all.size();
  rows.add({{"model", name}, {"what", "textbook build"}}, [&] { return plain_figures(rows, textbook, is_measured); });
  rows.add({{"model", name}, {"what", "fused build"}}, [&] { return plain_figures(rows, fused, is_measured); });
  rows.say(name + ", planning");
  nn::Planner planner(technique_run(chunked, {}), rows.options.device, nn::hardware("cpu"));
  // Times are over the faster of the two heads, so a plan pays for its chunked head.
  const double of_heads =
      plain_step_seconds(rows.options.device, chunked) / plain_step_seconds(rows.options.device, fused);
  const double base_s = planner.kept_step_s() / std::max(1.0, of_heads);
  for (const nn::Plan& plan : planner.plans()) {
    rows.add({{"model", name}, {"what", "budget of " + format_bytes(plan.peak_bytes)}},
             [&] { return plan_figures(rows, chunked, plan, base_s, is_measured); });
  }
  std::vector<CurvePoint> curve;
  for (std::size_t i = first; i < all.size(); ++i) {
    const auto share = [&](const report::Row& of) { return number(all[i], "predicted") / number(of, "predicted"); };
    const double of_textbook = share(all[first]), of_fused = share(all[first + 1]);
    all[i].numbers.insert(all[i].numbers.end(), {{"of_textbook", of_textbook}, {"of_fused", of_fused}});
    if (const auto time = value(all[i], "time_overhead")) curve.push_back({of_textbook, of_fused, *time});
  }
  return curve;
}

}  // namespace

std::string gpt_curve_verdict(std::span<const CurvePoint> curve) {
  const CurvePoint* cheap = nullptr;  // keeps least within the allowed time
  const CurvePoint* small = nullptr;  // the fastest that keeps as little as wanted
  for (const CurvePoint& point : curve) {
    if (point.time_overhead <= allowed_overhead && (!cheap || point.of_textbook < cheap->of_textbook)) cheap = &point;
    if (point.of_textbook <= wanted_share && (!small || point.time_overhead < small->time_overhead)) small = &point;
  }
  std::string text;
  if (cheap) {
    text = "at most +5 % time: " + report::format_percent(1 - cheap->of_textbook) +
           " fewer bytes than the textbook build, " + report::format_percent(1 - cheap->of_fused) +
           " fewer than the fused one, at +" + report::format_percent(cheap->time_overhead);
  } else {
    text = "no plan takes at most +5 % time";
  }
  text += small ? "; 85 % fewer than the textbook build: at +" + report::format_percent(small->time_overhead)
                : "; no plan keeps 85 % fewer than the textbook build";
  text += cheap && cheap->of_textbook <= wanted_share ? ", reached." : ", not reached.";
  return text;
}

std::string run_gpt_curve(Rows& rows) {
  std::string text;
  if (!rows.options.is_quick) {  // 12 layers, width 768, T 1024
    text = "gpt2: " + gpt_curve_verdict(add_plans(rows, "gpt2", setup_of("gpt2", 8), false)) + " ";
  }
  const models::Setup small =
      setup_of("gpt2", rows.sizes(2, 4),
               {.vocabulary = 500, .sequence = 128, .layers = rows.sizes(4, 12), .heads = 4, .width = 96});
  text += "small gpt: " + gpt_curve_verdict(add_plans(rows, "small gpt", small, true));
  std::vector<report::Row> plans;
  for (const report::Row& row : rows.experiment.rows) {
    if (value(row, "peak_measured")) plans.push_back(row);
  }
  return text + " Kept bytes and peaks are predicted as measured in " +
         count_rows(
             plans,
             [](const auto& row) { return is_equal(row) && value(row, "peak") == value(row, "peak_measured"); }) +
         " measured plans.";
}

}  // namespace thimble::bench
