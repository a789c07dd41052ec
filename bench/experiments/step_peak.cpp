// Experiments on whole training steps: where the bytes are at the peak, and whether the peak is what was predicted.

#include <thimble/bench/experiments/runs.h>

namespace thimble::bench {
namespace step_peak_detail {

std::string label(const models::Setup& setup) {
  return setup.model + ", batch " + std::to_string(setup.batch) + ", " + setup.optimizer;
}

models::Setup setup_of(const char* model, std::int64_t batch, const char* optimizer, std::int64_t image = 0,
                       std::int64_t sequence = 0) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  setup.optimizer = optimizer;
  setup.sizes.image = image;
  setup.sizes.sequence = sequence;
  return setup;
}

// Predicts, and measures where it fits.
report::Row row_of(const ExperimentOptions& options, const models::Setup& setup, nn::MemoryProfile& predicted) {
  report::Row row;
  row.config = {{"model", setup.model}, {"batch", setup.batch}, {"optimizer", setup.optimizer}};
  if (setup.sizes.image > 0) row.config.emplace_back("image", setup.sizes.image);
  if (setup.sizes.sequence > 0) row.config.emplace_back("sequence", setup.sizes.sequence);
  options.progress(label(setup));
  predicted = nn::profile_training(dry(options.device), zero_batch_run(setup), 2, true);
  row.predicted_bytes = static_cast<std::int64_t>(predicted.peak_bytes);
  row.numbers = {{"parameters", static_cast<double>(predicted.parameters)},
                 {"load", static_cast<double>(predicted.lower_bound_bytes)}};
  if (predicted.peak_bytes <= options.most_measured_bytes) {
    const nn::MemoryProfile measured = nn::profile_training(options.device, zero_batch_run(setup), 2);
    row.measured_bytes = static_cast<std::int64_t>(measured.peak_bytes);
    add_process(row, predicted.peak_bytes, process_bytes(measured));
    const auto compare = [&row](const char* name, std::size_t told, std::size_t found) {
      row.compared.push_back({name, static_cast<std::int64_t>(told), static_cast<std::int64_t>(found)});
    };
    compare("height", predicted.peak_height_bytes, measured.peak_height_bytes);
    compare("live", predicted.peak_live_bytes, measured.peak_live_bytes);
    compare("load", predicted.lower_bound_bytes, measured.lower_bound_bytes);
    if (measured.rss_bytes > 0) compare("resident", predicted.peak_bytes, measured.rss_bytes);
    row.numbers.emplace_back("resident", static_cast<double>(measured.rss_bytes));
    row.numbers.emplace_back("ms_per_step", measured.ms_per_step);
  }
  return row;
}

std::vector<report::Column> columns() {
  return {{"parameters", "parameters", report::Unit::plain, 0},
          {"load", "load (lower bound)", report::Unit::bytes},
          {"resident", "resident (kernel)", report::Unit::bytes},
          {"ms_per_step", "ms per step", report::Unit::milliseconds, 1}};
}

report::Timeline timeline_of(const models::Setup& setup, const nn::MemoryProfile& profile) {
  report::Timeline line;
  line.name = setup.model + "-" + setup.optimizer;
  line.title = "Two training steps of " + label(setup);
  line.caption = "Live bytes by category after every allocation and deallocation.";
  const std::vector<CategoryBytes> bytes = timeline(profile.events);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    line.events.push_back({report::report_bytes(bytes[i]), std::string(path_name(profile.events[i].path))});
  }
  return line;
}

}  // namespace step_peak_detail

report::Experiment step_peak_experiment(const ExperimentOptions& options) {
  using namespace step_peak_detail;
  report::Experiment experiment;
  experiment.name = "step-peak";
  experiment.title = "Where the bytes of a training step are";
  experiment.question = "At the peak of a step, what are the bytes for, and how does the optimizer change that?";
  experiment.theory =
      "with <i>P</i> parameters in f32: weights 4<i>P</i>, gradients 4<i>P</i>, state 0 (SGD), 4<i>P</i> (momentum), "
      "8<i>P</i> (Adam, AdamW); the rest is activations and temporaries.";
  experiment.columns = columns();
  std::vector<models::Setup> setups;
  for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
    setups.push_back(setup_of("resnet18", options.is_quick ? 8 : 32, optimizer, 32));
    setups.push_back(setup_of("char-gpt", options.is_quick ? 2 : 8, optimizer));
  }
  if (!options.is_quick) {
    setups.push_back(setup_of("resnet50", 8, "momentum", 224));
    setups.push_back(setup_of("gpt2", 1, "adamw", 0, 512));
  }
  report::Bars bars{"categories", "Live bytes at the peak, by category", "", {}, {}};
  for (const models::Setup& setup : setups) {
    nn::MemoryProfile predicted;
    experiment.rows.push_back(row_of(options, setup, predicted));
    bars.bars.push_back({label(setup), report::report_bytes(predicted.peak_by_category)});
    const bool has_own_optimizer = (setup.model == "resnet18" && setup.optimizer == "momentum") ||
                                   (setup.model == "char-gpt" && setup.optimizer == "adamw");
    if (has_own_optimizer) experiment.timelines.push_back(timeline_of(setup, predicted));
  }
  bars.caption = "What the arena commits is a little more: holes between blocks, and rounding to whole pages.";
  experiment.bars.push_back(bars);
  experiment.verdict =
      equal_rows(experiment, "measured rows") + ". The committed peak is a multiple of the arena's page granule.";
  return experiment;
}

report::Experiment prediction_experiment(const ExperimentOptions& options) {
  using namespace step_peak_detail;
  report::Experiment experiment;
  experiment.name = "prediction";
  experiment.title = "Peaks, predicted and measured";
  experiment.question = "Does a dry run tell the peak of a training run to the byte?";
  experiment.theory =
      "predicted: the height of the arena in a dry run of two steps; measured: the bytes that the arena committed in "
      "the real run, beside the kernel's own count of resident bytes in that mapping.";
  experiment.columns = columns();
  struct Family {
    const char* model;
    std::vector<std::int64_t> batches;
    std::int64_t image, sequence;
  };
  std::vector<Family> families{
      {"mlp", {1, 16, 128, 512}, 0, 0}, {"resnet18", {1, 2, 4, 8}, 32, 0}, {"char-gpt", {1, 2, 4}, 0, 64}};
  if (!options.is_quick) {
    families = {{"mlp", {1, 16, 128, 512}, 0, 0}, {"resnet18", {1, 2, 8, 32}, 32, 0},
                {"resnet34", {1, 4, 16}, 32, 0},  {"resnet50", {1, 2, 4}, 224, 0},
                {"resnet101", {1, 2}, 224, 0},    {"char-gpt", {1, 2, 4, 8}, 0, 128},
                {"char-gpt", {1, 4}, 0, 256},     {"gpt2", {1, 2}, 0, 128},
                {"gpt2-medium", {1}, 0, 128},     {"gpt2-large", {1}, 0, 64}};
  }
  for (const Family& family : families) {
    for (const std::int64_t batch : family.batches) {
      for (const char* optimizer : {"sgd", "momentum", "adam", "adamw"}) {
        nn::MemoryProfile predicted;
        const models::Setup setup = setup_of(family.model, batch, optimizer, family.image, family.sequence);
        experiment.rows.push_back(row_of(options, setup, predicted));
      }
    }
  }
  experiment.verdict = equal_rows(experiment, "measured rows") + ".";
  return experiment;
}

}  // namespace thimble::bench
