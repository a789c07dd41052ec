// Experiment: how high a training step stands in the arena when its blocks have planned offsets.

#include <algorithm>
#include <cstdio>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/runs.h>

namespace thimble::bench {
namespace placement_detail {

models::Setup setup_of(const char* model, std::int64_t batch, std::int64_t image, std::int64_t sequence) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  setup.sizes.image = image;
  setup.sizes.sequence = sequence;
  return setup;
}

std::vector<models::Setup> setups(bool is_quick) {
  if (is_quick) {
    return {setup_of("mlp", 128, 0, 0), setup_of("resnet18", 2, 32, 0), setup_of("resnet18", 8, 32, 0),
            setup_of("char-gpt", 1, 0, 64), setup_of("char-gpt", 4, 0, 64)};
  }
  std::vector<models::Setup> all;
  for (const std::int64_t batch : {16, 128, 512}) all.push_back(setup_of("mlp", batch, 0, 0));
  for (const std::int64_t batch : {1, 4, 16}) all.push_back(setup_of("char-gpt", batch, 0, 128));
  for (const std::int64_t batch : {1, 8, 32, 128}) all.push_back(setup_of("resnet18", batch, 32, 0));
  for (const std::int64_t batch : {1, 4, 32}) all.push_back(setup_of("resnet50", batch, 224, 0));
  all.push_back(setup_of("resnet101", 2, 224, 0));
  for (const std::int64_t batch : {1, 4}) all.push_back(setup_of("gpt2", batch, 0, 512));
  return all;
}

struct Profiles {
  nn::MemoryProfile dynamic, placed;  // dry runs without and with plans
  StepPlacement steady;
};

report::Row row_of(const ExperimentOptions& options, const models::Setup& setup, Profiles& profiles) {
  report::Row row;
  row.config = {{"model", setup.model}, {"batch", setup.batch}};
  if (setup.sizes.image > 0) row.config.emplace_back("image", setup.sizes.image);
  if (setup.sizes.sequence > 0) row.config.emplace_back("sequence", setup.sizes.sequence);
  options.progress("placement: " + setup.model + ", batch " + std::to_string(setup.batch));
  constexpr std::size_t steps = 3;
  const Device device = dry(options.device);
  const nn::MakeRun make = zero_batch_run(setup);
  profiles.dynamic = nn::profile_training(device, make, steps, true);
  const std::vector<StepPlacement> plans = nn::plan_steps(profiles.dynamic, nn::placement_options(device));
  profiles.placed = nn::profile_training(device, make, steps, false, plans);
  profiles.steady = plans.back();
  row.predicted_bytes = static_cast<std::int64_t>(profiles.placed.peak_bytes);
  // Larger ones are measured by other experiments; this one is about heights, which a dry run has too.
  const std::size_t most_measured_bytes = std::min(options.most_measured_bytes, std::size_t{512} << 20);
  if (profiles.placed.peak_bytes <= most_measured_bytes) {
    const nn::MemoryProfile measured = nn::profile_training(options.device, make, steps, false, plans);
    row.measured_bytes = static_cast<std::int64_t>(measured.peak_bytes);
    row.compared.push_back({"height", static_cast<std::int64_t>(profiles.placed.peak_height_bytes),
                            static_cast<std::int64_t>(measured.peak_height_bytes)});
    add_process(row, profiles.placed.peak_bytes, process_bytes(measured));
  }
  const memory::Placement& placement = profiles.steady.placement;
  const auto ratio_to_load = [&](std::size_t height) {
    return static_cast<double>(height) / static_cast<double>(profiles.dynamic.lower_bound_bytes);
  };
  double ms = 0;
  for (const StepPlacement& plan : plans) ms = std::max(ms, plan.placement.ms);
  row.numbers = {{"load", static_cast<double>(profiles.dynamic.lower_bound_bytes)},
                 {"dynamic_height", static_cast<double>(profiles.dynamic.peak_height_bytes)},
                 {"placed_height", static_cast<double>(profiles.placed.peak_height_bytes)},
                 {"dynamic_ratio", ratio_to_load(profiles.dynamic.peak_height_bytes)},
                 {"placed_ratio", ratio_to_load(profiles.placed.peak_height_bytes)},
                 {"buffers", static_cast<double>(profiles.steady.buffers.size())},
                 {"step_load", static_cast<double>(placement.load)},
                 {"step_height", static_cast<double>(placement.height)},
                 {"step_ratio", placement.ratio()},
                 {"ms", ms},
                 {"deviations", static_cast<double>(profiles.placed.placed.deviations)}};
  return row;
}

std::vector<report::Column> columns() {
  using report::Unit;
  return {{"load", "load, all", Unit::bytes},
          {"dynamic_height", "dynamic height", Unit::bytes},
          {"placed_height", "placed height", Unit::bytes},
          {"dynamic_ratio", "dynamic / load", Unit::plain, 4},
          {"placed_ratio", "placed / load", Unit::plain, 4},
          {"buffers", "blocks of a step", Unit::plain, 0},
          {"step_load", "load of a step", Unit::bytes},
          {"step_height", "height of its placement", Unit::bytes},
          {"step_ratio", "height / load of a step", Unit::plain, 5},
          {"ms", "placed in ms", Unit::milliseconds, 1},
          {"deviations", "deviations", Unit::plain, 0}};
}

report::Plot plot_of(const std::vector<report::Row>& rows) {
  report::Plot plot;
  plot.name = "height";
  plot.title = "Height of the arena over the load";
  plot.caption = "One point per row of the table, in its order. At 1 not a byte is lost to holes.";
  plot.x = {"row", report::Unit::plain, report::Scale::linear, true};
  plot.y = {"height / load", report::Unit::plain, report::Scale::linear, false};
  report::Series dynamic{"dynamic arena", report::Role::other, {}, ""};
  report::Series placed{"placed arena", report::Role::other, {}, ""};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto x = static_cast<double>(i + 1);
    dynamic.points.push_back({x, *report::find_number(rows[i], "dynamic_ratio")});
    placed.points.push_back({x, *report::find_number(rows[i], "placed_ratio")});
  }
  plot.series = {dynamic, placed};
  return plot;
}

}  // namespace placement_detail

report::Experiment placement_experiment(const ExperimentOptions& options) {
  using namespace placement_detail;
  report::Experiment experiment;
  experiment.name = "placement";
  experiment.title = "Planned offsets against an allocator";
  experiment.question =
      "How much of the arena's height is holes, and how much is left when a step's blocks are placed?";
  experiment.theory =
      "no placement is lower than the load, the largest sum of live bytes. Predicted: what the arena commits in a dry "
      "run of three steps with placed blocks, in whole granules; measured: the same in the real run.";
  experiment.columns = columns();
  std::size_t optimal = 0, deviations = 0;
  double worst = 1;
  for (const models::Setup& setup : setups(options.is_quick)) {
    Profiles profiles;
    experiment.rows.push_back(row_of(options, setup, profiles));
    optimal += profiles.steady.placement.is_optimal ? 1 : 0;
    worst = std::max(worst, profiles.steady.placement.ratio());
    deviations += profiles.placed.placed.deviations;
  }
  experiment.plots.push_back(plot_of(experiment.rows));
  char text[64];
  std::snprintf(text, sizeof text, "%.5f", worst);
  experiment.verdict = std::to_string(optimal) + " of " + std::to_string(experiment.rows.size()) +
                       " steady steps are placed optimally, the worst stands at " + text + " of its load; " +
                       std::to_string(deviations) + " deviations.";
  return experiment;
}

}  // namespace thimble::bench
