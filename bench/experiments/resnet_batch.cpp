// Experiment: what a ResNet keeps for backward, against the batch.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace resnet_batch_detail {

struct Family {
  const char* model;
  std::int64_t image;
  std::vector<std::int64_t> batches;
};

models::Setup setup_of(const Family& family, std::int64_t batch) {
  models::Setup setup;
  setup.model = family.model;
  setup.batch = batch;
  setup.sizes.image = family.image;
  setup.sizes.build = models::Build::textbook;
  return setup;
}

// The literature's saved set, linear in the batch; the rest of what the textbook build keeps is named beside it.
void add_theory(report::Row& row, const std::vector<models::Term>& terms, std::int64_t batch) {
  std::int64_t bytes = 0;
  for (const models::Term& term : terms) {
    const bool is_counted = term.name == "input" || term.name == "conv outputs" || term.name == "relu outputs" ||
                            term.name == "pool output" || term.name == "fc input";
    if (is_counted) {
      bytes += term.bytes(batch);
    } else {
      row.remainder.emplace_back(term.name, term.bytes(batch));
    }
  }
  row.theory_bytes = bytes;
}

report::Row row_of(const ExperimentOptions& options, const Family& family, std::int64_t batch) {
  const models::Setup setup = setup_of(family, batch);
  report::Row row;
  row.config = {{"model", setup.model}, {"image", family.image}, {"batch", batch}};
  add_theory(row, models::make_theory(setup.model, setup.sizes, setup.dtype).outside, batch);
  options.progress("resnet-batch: " + setup.model + ", image " + std::to_string(family.image) + ", batch " +
                   std::to_string(batch));
  // The batch itself is booked as input, but backward keeps it too: the theory counts it.
  const auto kept = [](const ForwardBytes& bytes) { return static_cast<std::int64_t>(bytes.activation + bytes.input); };
  const ForwardBytes predicted = forward_bytes(dry(options.device), setup, {});
  const ForwardBytes measured = forward_bytes(options.device, setup, {});
  row.predicted_bytes = kept(predicted);
  row.measured_bytes = kept(measured);
  add_process(row, predicted.process.arena_bytes, measured.process);
  row.numbers = {{"per_image", static_cast<double>(*row.predicted_bytes) / static_cast<double>(batch)}};
  return row;
}

}  // namespace resnet_batch_detail

report::Experiment resnet_batch_experiment(const ExperimentOptions& options) {
  using namespace resnet_batch_detail;
  report::Experiment experiment;
  experiment.name = "resnet-batch";
  experiment.title = "ResNet activation bytes against the batch";
  experiment.question = "Is what a ResNet keeps for backward linear in the batch, with the slope that the shapes give?";
  experiment.theory =
      "per image: input + conv outputs + ReLU outputs + pool output + fc input; for ResNet-50 at 224 that is "
      "21,075,968 elements, 4 bytes each. What remains is named: batch-norm statistics (whatever the batch), and the "
      "head's scores.";
  experiment.columns = {{"per_image", "bytes per image", report::Unit::bytes, 1}};
  std::vector<Family> families;
  if (options.is_quick) {
    families = {{"resnet18", 32, {1, 2, 4, 8, 16}}, {"resnet50", 224, {1, 2}}};
  } else {
    families = {{"resnet18", 32, {1, 2, 4, 8, 16, 32, 64}},
                {"resnet18", 224, {1, 2, 4, 8}},
                {"resnet50", 224, {1, 2, 4, 8, 16}},
                {"resnet101", 224, {1, 2, 4}}};
  }
  report::Plot plot;
  plot.name = "batch";
  plot.title = "Kept for backward against the batch (textbook build, f32)";
  plot.caption = "Straight lines: every image costs the same.";
  plot.x = {"batch", report::Unit::plain, report::Scale::linear, true};
  plot.y = {"kept for backward", report::Unit::bytes, report::Scale::linear, true};
  std::size_t named = 0;
  for (const Family& family : families) {
    std::vector<report::Row> rows;
    for (const std::int64_t batch : family.batches) rows.push_back(row_of(options, family, batch));
    const std::string name = std::string(family.model) + " at " + std::to_string(family.image);
    add_curves(plot, rows, 2, name, name);
    for (report::Row& row : rows) {
      named += report::unnamed_bytes(row) == 0 ? 1 : 0;
      experiment.rows.push_back(std::move(row));
    }
  }
  experiment.plots.push_back(plot);
  experiment.verdict = "Linear, with the theory's slope: in " + std::to_string(named) + " of " +
                       std::to_string(experiment.rows.size()) +
                       " rows theory and the named remainder give every predicted byte.";
  return experiment;
}

}  // namespace thimble::bench
