// Experiment: what one transformer layer keeps for backward.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace gpt_layer_detail {

struct Sizes {
  std::int64_t sequence, batch, width, heads;
};

models::Setup setup_of(const Sizes& s, models::Build build) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = s.batch;
  setup.sizes.sequence = s.sequence;
  setup.sizes.width = s.width;
  setup.sizes.heads = s.heads;
  setup.sizes.layers = 2;
  setup.sizes.dropout = 0.1;
  setup.sizes.build = build;
  return setup;
}

report::Row row_of(const ExperimentOptions& options, const Sizes& s, models::Build build) {
  const models::Setup setup = setup_of(s, build);
  const bool is_textbook = build == models::Build::textbook;
  report::Row row;
  row.config = {{"build", std::string(is_textbook ? "textbook" : "tiled attention")},
                {"s", s.sequence},
                {"b", s.batch},
                {"h", s.width},
                {"a", s.heads}};
  // Statistics of norms are outside of the paper's count.
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.dtype);
  std::int64_t counted = 0, statistics = 0;
  for (const models::Term& term : theory.layers[1].kept) {
    (term.name == "norm statistics" ? statistics : counted) += term.bytes(s.batch);
  }
  row.theory_bytes = counted;
  row.remainder = {{"layer-norm statistics", statistics}};
  const std::string& layer = theory.layers[1].path;
  options.progress("gpt-layer: s " + std::to_string(s.sequence) + ", b " + std::to_string(s.batch) + ", h " +
                   std::to_string(s.width) + ", a " + std::to_string(s.heads));
  const ForwardBytes predicted = forward_bytes(dry(options.device), setup, {layer});
  const ForwardBytes measured = forward_bytes(options.device, setup, {layer});
  row.predicted_bytes = static_cast<std::int64_t>(predicted.by_path[0].second);
  row.measured_bytes = static_cast<std::int64_t>(measured.by_path[0].second);
  add_process(row, predicted.process.arena_bytes, measured.process);
  row.numbers = {{"per_token", static_cast<double>(*row.predicted_bytes) / static_cast<double>(s.sequence * s.batch)}};
  return row;
}

/// The rows of a build that differ in s alone.
std::vector<report::Row> curve_of(const std::vector<report::Row>& rows, const std::string& build) {
  std::vector<report::Row> curve;
  const auto size = [](const report::Row& row, std::size_t at) {
    return std::get<std::int64_t>(row.config[at].second);
  };
  for (const report::Row& row : rows) {
    const bool is_build = std::get<std::string>(row.config[0].second) == build;
    if (is_build && size(row, 2) == 2 && size(row, 3) == 128 && size(row, 4) == 4) curve.push_back(row);
  }
  return curve;
}

}  // namespace gpt_layer_detail

report::Experiment gpt_layer_experiment(const ExperimentOptions& options) {
  using namespace gpt_layer_detail;
  report::Experiment experiment;
  experiment.name = "gpt-layer";
  experiment.title = "Activation bytes of one GPT layer";
  experiment.question = "How much does a transformer layer keep for backward, and does it grow as the formula says?";
  experiment.theory =
      "textbook: <i>sbh</i>(16<i>e</i> + 2) + (2<i>e</i> + 1)<i>as</i><sup>2</sup><i>b</i> (Korthikanti et al. 2022, "
      "equation 1, with <i>e</i> bytes per element and one-byte dropout masks); tiled attention: 16<i>esbh</i> + "
      "4<i>asb</i>. Here <i>e</i> = 4.";
  experiment.columns = {{"per_token", "bytes per token", report::Unit::plain, 0}};
  std::vector<Sizes> sizes;
  for (const std::int64_t s : {64, 128, 256, 512, 1024}) {
    if (!options.is_quick || s <= 512) sizes.push_back({s, 2, 128, 4});
  }
  sizes.push_back({128, 1, 128, 4});
  sizes.push_back({128, 4, 128, 4});
  sizes.push_back({128, 2, 256, 4});
  sizes.push_back({128, 2, 64, 4});
  sizes.push_back({128, 2, 128, 1});
  sizes.push_back({128, 2, 128, 8});
  if (!options.is_quick) sizes.push_back({1024, 1, 768, 12});
  for (const models::Build build : {models::Build::textbook, models::Build::fused}) {
    for (const Sizes& s : sizes) experiment.rows.push_back(row_of(options, s, build));
  }
  report::Plot plot;
  plot.name = "sequence";
  plot.title = "One layer against the sequence length (b 2, h 128, a 4)";
  plot.caption = "The textbook layer grows with the square of the sequence; tiled attention keeps it linear.";
  plot.x = {"sequence length s", report::Unit::plain, report::Scale::log2, false};
  plot.y = {"kept for backward", report::Unit::bytes, report::Scale::log2, false};
  add_curves(plot, curve_of(experiment.rows, "textbook"), 1, "textbook", "textbook");
  add_curves(plot, curve_of(experiment.rows, "tiled attention"), 1, "tiled attention", "tiled");
  experiment.plots.push_back(plot);
  std::size_t named = 0;
  for (const report::Row& row : experiment.rows) named += report::unnamed_bytes(row) == 0 ? 1 : 0;
  experiment.verdict = "In " + std::to_string(named) + " of " + std::to_string(experiment.rows.size()) +
                       " rows theory and the named remainder give every predicted byte.";
  return experiment;
}

}  // namespace thimble::bench
