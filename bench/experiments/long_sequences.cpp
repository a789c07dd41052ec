// Experiment: where the ways to train on long sequences stop, in budgets of known size.

#include <optional>

#include <thimble/bench/experiments/runs.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/offload/direct_file.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>

namespace thimble::bench {
namespace long_sequences_detail {

/// What is switched on; each way has what those before it have.
struct Way {
  const char* name;
  models::BatchSearch search;
  bool has_chunks, has_tiles, offloads_saved, offloads_state;
};

constexpr Way ways[] = {
    {"everything kept", models::BatchSearch::plain, false, false, false, false},
    {"chunked head", models::BatchSearch::plain, true, false, false, false},
    {"and feed-forward layers in tiles", models::BatchSearch::plain, true, true, false, false},
    {"chunked head, segments run again", models::BatchSearch::planned, true, false, false, false},
    {"and feed-forward layers in tiles, segments run again", models::BatchSearch::planned, true, true, false, false},
    {"and saved tensors in the tier", models::BatchSearch::planned, true, true, true, false},
    {"and parameters, gradients, optimizer state", models::BatchSearch::planned, true, true, true, true}};

void switch_on(models::Setup& setup, const Way& way, const std::string& place) {
  setup.sizes.head = way.has_chunks ? models::Head::chunked : models::Head::full;
  setup.sizes.feed_forward = way.has_tiles ? models::FeedForward::tiled : models::FeedForward::full;
  if (way.offloads_saved) setup.offload = place;
  setup.offloads_parameters = setup.offloads_gradients = setup.offloads_optimizer = way.offloads_state;
}

/// A model whose longest sequence in a budget is asked for. `device` is planned for; measured ones train there too.
struct Subject {
  models::Setup setup;
  std::size_t budget_bytes = 0;
  Device device = cpu;
  std::string place;  ///< of offloaded tensors; empty: there is none
  bool is_measured = false;
};

constexpr std::size_t GiB = std::size_t{1} << 30, MiB = std::size_t{1} << 20;

/// A large model in bf16 with AdamW on a dry GPU.
Subject large(const char* model, std::size_t budget_bytes, bool is_quick) {
  Subject subject;
  subject.setup.model = model, subject.setup.batch = 1;
  models::set_precision(subject.setup, "bf16");
  subject.budget_bytes = budget_bytes;
  subject.device = cuda();
  subject.place = "host";
  if (is_quick) {
    subject.setup.sizes.layers = 2, subject.setup.sizes.width = 256, subject.setup.sizes.vocabulary = 2048;
    subject.budget_bytes = 96 * MiB;
  }
  return subject;
}

/// Where a file tier can be on this machine; empty: nowhere.
std::string disk_folder() {
  for (const char* const folder : {"/var/tmp", "."}) {
    try {
      DirectFile probe(folder);
      return folder;
    } catch (const FileError&) {
    }
  }
  return {};
}

/// A small one that trains on generated text.
Subject small(const ExperimentOptions& options) {
  Subject subject;
  models::TrainOptions train =
      text_training(options, "tiny-llama", {.layers = 4, .heads = 4, .width = 128, .sequence = 64, .batch = 1}, 2, 2);
  if (options.is_quick) train.setup.sizes.layers = 2, train.setup.sizes.width = 64;
  train.setup.sizes.hidden = 4 * train.setup.sizes.width;
  subject.setup = models::prepare_training(train).options.setup;  // with the vocabulary of the text
  subject.budget_bytes = (options.is_quick ? 16 : 48) * MiB;
  subject.device = options.device;
  subject.place = options.device.is_cuda() ? "host" : disk_folder();
  subject.is_measured = true;
  return subject;
}

report::Row row_of(const Subject& subject, const Way& way) {
  models::PlanOptions plan;
  plan.setup = subject.setup;
  plan.device = subject.device;
  switch_on(plan.setup, way, subject.place);
  std::vector<report::Setting> config{
      {"model", subject.setup.model}, {"in", format_bytes(subject.budget_bytes)}, {"how", std::string(way.name)}};
  report::Row row;
  models::Largest longest;
  try {
    longest = find_largest(plan, subject.budget_bytes, way.search, models::Extent::sequence);
  } catch (const nn::BudgetError& error) {
    row.config = config;
    row.predicted_bytes = static_cast<std::int64_t>(error.minimum_bytes());
    row.numbers = {{"sequence", 0}};
    return row;
  }
  row.config = config;
  row.predicted_bytes = static_cast<std::int64_t>(longest.peak_bytes);
  if (subject.is_measured) {
    models::TrainOptions train;
    train.setup = plan.setup;
    train.setup.sizes.sequence = longest.size;
    train.data = "synthetic";
    train.device = subject.device;
    train.steps = 2;
    train.eval_batches = 1;
    // Where everything is kept nothing is planned: what is promised is what the run takes by itself.
    if (way.search == models::BatchSearch::planned) train.budget_bytes = longest.peak_bytes;
    row = training_row(config, models::train(models::prepare_training(train)));
  }
  row.numbers = {{"sequence", static_cast<double>(longest.size)},
                 {"next_peak", static_cast<double>(longest.next_peak_bytes)},
                 {"time_overhead", longest.time_overhead},
                 {"probes", static_cast<double>(longest.probes)}};
  return row;
}

}  // namespace long_sequences_detail

report::Experiment long_sequences_experiment(const ExperimentOptions& options) {
  using namespace long_sequences_detail;
  report::Experiment experiment;
  experiment.name = "long-sequences";
  experiment.title = "How long a sequence may be";
  experiment.question = "Where does each way to need less memory stop, as the sequence grows?";
  experiment.theory =
      "A layer keeps <i>e s (6 h + 2 g D + 3 f)</i> bytes for a sequence of <i>s</i>, in tiles <i>3 e s f</i> less, "
      "under a closed segment <i>e s h</i>; logits are <i>e s V</i>. Attention is tiled in all of them. Each length is "
      "the longest whose step fits the budget to the byte, and one more token does not. The large models are dry runs "
      "of AdamW in bf16 with f32 masters on a GPU; the small one trains two steps at its longest length.";
  using report::Unit;
  experiment.columns = {{"sequence", "longest sequence", Unit::plain, 0},
                        {"next_peak", "peak with one more token", Unit::bytes},
                        {"time_overhead", "time over keeping everything", Unit::percent, 1},
                        {"probes", "lengths tried", Unit::plain, 0}};
  std::vector<Subject> subjects{large("llama-3.2-1b", 24 * GiB, options.is_quick)};
  if (!options.is_quick) {
    subjects.push_back(large("llama-3.2-1b", 80 * GiB, false));
    subjects.push_back(large("llama-3-8b", 80 * GiB, false));
  }
  subjects.push_back(small(options));
  for (const Subject& subject : subjects) {
    const std::string title = subject.setup.model + " in " + format_bytes(subject.budget_bytes);
    std::optional<double> first;
    double last = 0;
    for (const Way& way : ways) {
      if (way.offloads_saved && subject.place.empty()) continue;
      options.progress("long-sequences: " + title + ", " + way.name);
      experiment.rows.push_back(row_of(subject, way));
      last = *report::find_number(experiment.rows.back(), "sequence");
      if (!first) first = last;
    }
    experiment.verdict += (experiment.verdict.empty() ? "" : "; ") + title + ": from " +
                          report::format_fixed(*first, 0) + " to " + report::format_fixed(last, 0) + " tokens";
  }
  experiment.verdict += "; " + equal_rows(experiment) + ".";
  return experiment;
}

}  // namespace thimble::bench
