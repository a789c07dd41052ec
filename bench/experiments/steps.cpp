// Experiments on whole training steps: the bytes at the peak by category, the peak beside its prediction, and the
// height of blocks with planned offsets.

#include <algorithm>
#include <cstdio>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/models/training/costs.h>

namespace thimble::bench {
namespace {

std::string label(const models::Setup& setup) {
  return setup.model + ", batch " + std::to_string(setup.batch) + ", " + setup.optimizer.name;
}

Config config_of(const models::Setup& setup) {
  Config config{{"model", setup.model}, {"batch", setup.batch}};
  if (!setup.optimizer.name.empty()) config.emplace_back("optimizer", setup.optimizer.name);
  if (setup.sizes.image > 0) config.emplace_back("image", setup.sizes.image);
  if (setup.sizes.sequence > 0) config.emplace_back("sequence", setup.sizes.sequence);
  return config;
}

// Predicts a step, and measures it if it fits.
nn::MemoryProfile add_step(Rows& rows, const models::Setup& setup) {
  nn::MemoryProfile predicted;
  rows.add(config_of(setup), [&] {
    predicted = nn::profile_training(dry(rows.options.device), zero_batch_run(setup), 2, true);
    Figures figures{.predicted = predicted.peak_bytes,
                    .numbers = {{"parameters", predicted.parameters}, {"load", predicted.lower_bound_bytes}}};
    if (predicted.peak_bytes > rows.options.most_measured_bytes) return figures;
    const nn::MemoryProfile measured = nn::profile_training(rows.options.device, zero_batch_run(setup), 2);
    figures.measured = measured.peak_bytes;
    figures.processes = {{predicted.peak_bytes, process_bytes(measured)}};
    figures.compared = {{"height", predicted.peak_height_bytes, measured.peak_height_bytes},
                        {"live", predicted.peak_live_bytes, measured.peak_live_bytes},
                        {"load", predicted.lower_bound_bytes, measured.lower_bound_bytes}};
    if (measured.rss_bytes > 0) figures.compared.push_back({"resident", predicted.peak_bytes, measured.rss_bytes});
    figures.numbers.emplace_back("resident", measured.rss_bytes);
    figures.numbers.emplace_back("ms_per_step", measured.ms_per_step);
    return figures;
  });
  return predicted;
}

report::Timeline timeline_of(const models::Setup& setup, const nn::MemoryProfile& profile) {
  report::Timeline line;
  line.name = setup.model + "-" + setup.optimizer.name;
  line.title = "Two training steps of " + label(setup);
  line.caption = "Live bytes by category after every allocation and deallocation.";
  const std::vector<memory::CategoryBytes> bytes = timeline(profile.events);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    line.events.push_back({report::report_bytes(bytes[i]), std::string(path_name(profile.events[i].path))});
  }
  return line;
}

/// A model in several batches.
struct ModelBatches {
  const char* model;
  std::vector<std::int64_t> batches;
  std::int64_t image, sequence;
};
std::vector<models::Setup> setups_of(const std::vector<ModelBatches>& families,
                                     const std::vector<const char*>& optimizers) {
  std::vector<models::Setup> setups;
  for (const ModelBatches& family : families) {
    for (const std::int64_t batch : family.batches) {
      for (const char* const optimizer : optimizers) {
        setups.push_back(
            setup_of(family.model, batch, {.image = family.image, .sequence = family.sequence}, optimizer));
      }
    }
  }
  return setups;
}

}  // namespace

std::string run_step_peak(Rows& rows) {
  std::vector<models::Setup> setups;
  for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
    setups.push_back(setup_of("resnet18", rows.sizes(8, 32), {.image = 32}, optimizer));
    setups.push_back(setup_of("char-gpt", rows.sizes(2, 8), {}, optimizer));
  }
  if (!rows.options.is_quick) {
    setups.push_back(setup_of("resnet50", 8, {.image = 224}, "momentum"));
    setups.push_back(setup_of("gpt2", 1, {.sequence = 512}, "adamw"));
  }
  report::Bars bars{"categories",
                    "Live bytes at the peak, by category",
                    "What the arena commits is a little more: holes between blocks, and rounding to whole pages.",
                    {}};
  for (const models::Setup& setup : setups) {
    const nn::MemoryProfile predicted = add_step(rows, setup);
    bars.bars.push_back(report::category_bar(label(setup), report::report_bytes(predicted.peak_by_category)));
    const bool has_own_optimizer = (setup.model == "resnet18" && setup.optimizer.name == "momentum") ||
                                   (setup.model == "char-gpt" && setup.optimizer.name == "adamw");
    if (has_own_optimizer) rows.experiment.timelines.push_back(timeline_of(setup, predicted));
  }
  rows.experiment.bars.push_back(bars);
  return equal_rows(rows.experiment, "measured rows") +
         ". The committed peak is a multiple of the arena's page granule.";
}

std::string run_prediction(Rows& rows) {
  const auto families = rows.sizes<std::vector<ModelBatches>>(
      {{"mlp", {1, 16, 128, 512}, 0, 0}, {"resnet18", {1, 2, 4, 8}, 32, 0}, {"char-gpt", {1, 2, 4}, 0, 64}},
      {{"mlp", {1, 16, 128, 512}, 0, 0},
       {"resnet18", {1, 2, 8, 32}, 32, 0},
       {"resnet34", {1, 4, 16}, 32, 0},
       {"resnet50", {1, 2, 4}, 224, 0},
       {"resnet101", {1, 2}, 224, 0},
       {"char-gpt", {1, 2, 4, 8}, 0, 128},
       {"char-gpt", {1, 4}, 0, 256},
       {"gpt2", {1, 2}, 0, 128},
       {"gpt2-medium", {1}, 0, 128},
       {"gpt2-large", {1}, 0, 64}});
  for (const models::Setup& setup : setups_of(families, {"sgd", "momentum", "adam", "adamw"})) add_step(rows, setup);
  return equal_rows(rows.experiment, "measured rows") + ".";
}

std::string run_placement(Rows& rows) {
  const auto families = rows.sizes<std::vector<ModelBatches>>(
      {{"mlp", {128}, 0, 0}, {"resnet18", {2, 8}, 32, 0}, {"char-gpt", {1, 4}, 0, 64}},
      {{"mlp", {16, 128, 512}, 0, 0},
       {"char-gpt", {1, 4, 16}, 0, 128},
       {"resnet18", {1, 8, 32, 128}, 32, 0},
       {"resnet50", {1, 4, 32}, 224, 0},
       {"resnet101", {2}, 224, 0},
       {"gpt2", {1, 4}, 0, 512}});
  constexpr std::size_t steps = 3;
  std::size_t optimal = 0, deviations = 0;
  double worst = 1;
  for (const models::Setup& setup : setups_of(families, {""})) {
    rows.add(config_of(setup), [&] {
      const memory::Device device = dry(rows.options.device);
      const nn::MakeRun make = zero_batch_run(setup);
      const nn::MemoryProfile dynamic = nn::profile_training(device, make, steps, true);
      const std::vector<memory::StepPlacement> plans = nn::plan_steps(dynamic, nn::placement_options(device));
      const nn::MemoryProfile placed = nn::profile_training(device, make, steps, false, plans);
      const memory::Placement& steady = plans.back().placement;
      optimal += steady.is_optimal ? 1 : 0;
      worst = std::max(worst, steady.ratio());
      deviations += placed.placed.deviations;
      const auto load = static_cast<double>(dynamic.lower_bound_bytes);
      double ms = 0;
      for (const memory::StepPlacement& plan : plans) ms = std::max(ms, plan.placement.ms);
      Figures figures{.predicted = placed.peak_bytes,
                      .numbers = {{"load", load},
                                  {"dynamic_height", dynamic.peak_height_bytes},
                                  {"placed_height", placed.peak_height_bytes},
                                  {"dynamic_ratio", static_cast<double>(dynamic.peak_height_bytes) / load},
                                  {"placed_ratio", static_cast<double>(placed.peak_height_bytes) / load},
                                  {"buffers", plans.back().buffers.size()},
                                  {"step_load", steady.load},
                                  {"step_height", steady.height},
                                  {"step_ratio", steady.ratio()},
                                  {"ms", ms},
                                  {"deviations", placed.placed.deviations}}};
      // Larger ones are measured by other experiments; this one is about heights, which a dry run has too.
      if (placed.peak_bytes > std::min(rows.options.most_measured_bytes, std::size_t{512} << 20)) return figures;
      const nn::MemoryProfile measured = nn::profile_training(rows.options.device, make, steps, false, plans);
      figures.measured = measured.peak_bytes;
      figures.compared = {{"height", placed.peak_height_bytes, measured.peak_height_bytes}};
      figures.processes = {{placed.peak_bytes, process_bytes(measured)}};
      return figures;
    });
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.5f", worst);
  return std::to_string(optimal) + " of " + std::to_string(rows.experiment.rows.size()) +
         " steady steps are placed optimally, the worst is at " + text + " of its load; " + std::to_string(deviations) +
         " deviations.";
}

}  // namespace thimble::bench
