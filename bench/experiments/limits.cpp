// Experiments on limits: the largest batch on a card, plain and planned; and where the ways to train on long sequences
// stop, in budgets of known size.

#include <optional>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>

namespace thimble::bench {
namespace {

struct Card {
  const char* model;
  std::int64_t gib;
  std::int64_t tokens;  ///< of a sample
  bool is_text;
};

struct BatchWay {
  const char* name;
  models::BatchSearch search;
  models::Head head;
};

constexpr BatchWay batch_ways[] = {
    {"plain", models::BatchSearch::plain, models::Head::full},
    {"planned, at most a third more time", models::BatchSearch::in_a_third, models::Head::full},
    {"planned, smallest", models::BatchSearch::planned, models::Head::full},
    {"planned, smallest, chunked head", models::BatchSearch::planned, models::Head::chunked}};

/// The largest batch, its bytes, and the bytes of a batch larger by one.
Figures batch_figures(models::RunOptions plan, const BatchWay& way) {
  plan.setup.sizes.head = way.head;
  const models::Largest largest = find_largest(plan, plan.budget_bytes, way.search);
  Figures figures{
      .predicted = largest.peak_bytes,
      .numbers = {{"batch", largest.size}, {"time_overhead", largest.time_overhead}, {"probes", largest.probes}}};
  if (largest.next_peak_bytes > 0) figures.numbers.emplace_back("next_peak", largest.next_peak_bytes);
  return figures;
}

/// Techniques that are on. Each way adds to the one before it.
struct LengthWay {
  const char* name;
  models::BatchSearch search;
  bool has_chunks, has_tiles, offloads_saved, offloads_state;
};

constexpr LengthWay length_ways[] = {
    {"everything kept", models::BatchSearch::plain, false, false, false, false},
    {"chunked head", models::BatchSearch::plain, true, false, false, false},
    {"and feed-forward layers in tiles", models::BatchSearch::plain, true, true, false, false},
    {"chunked head, segments run again", models::BatchSearch::planned, true, false, false, false},
    {"and feed-forward layers in tiles, segments run again", models::BatchSearch::planned, true, true, false, false},
    {"and saved tensors in the tier", models::BatchSearch::planned, true, true, true, false},
    {"and parameters, gradients, optimizer state", models::BatchSearch::planned, true, true, true, true}};

/// A model and a budget, to find the longest sequence. Plans are for `device`; measured models also train there.
struct BudgetedModel {
  models::Setup setup;
  std::size_t budget_bytes = 0;
  memory::Device device = cpu;
  std::string place;  ///< of offloaded tensors; empty if there is none
  bool is_measured = false;
};

constexpr std::size_t GiB = std::size_t{1} << 30, MiB = std::size_t{1} << 20;

/// A large model in bf16 with AdamW on a dry GPU.
BudgetedModel large(const char* model, std::size_t budget_bytes) {
  BudgetedModel subject{setup_of(model, 1), budget_bytes, cuda(), "host"};
  models::set_precision(subject.setup, "bf16");
  return subject;
}

/// A folder for a file tier on this machine; empty if there is none.
std::string disk_folder() {
  for (const char* const folder : {"/var/tmp", "."}) {
    try {
      memory::DirectFile probe(folder);
      return folder;
    } catch (const FileError&) {
    }
  }
  return {};
}

/// A small one that trains on generated text.
BudgetedModel small(const Rows& rows) {
  models::RunOptions train = text_training(
      rows.options, "tiny-llama",
      {.layers = rows.sizes(2, 4), .heads = 4, .width = rows.sizes(64, 128), .sequence = 64, .batch = 1}, 2, 2);
  train.setup.sizes.hidden = 4 * train.setup.sizes.width;
  return {models::Engine(train).options().setup,  // with the vocabulary of the text
          rows.sizes(16, 48) * MiB, rows.options.device, rows.options.device.is_cuda() ? "host" : disk_folder(), true};
}

Figures length_figures(const BudgetedModel& subject, const LengthWay& way) {
  models::RunOptions plan;
  plan.setup = subject.setup;
  plan.device = subject.device;
  plan.setup.sizes.head = way.has_chunks ? models::Head::chunked : models::Head::full;
  plan.setup.sizes.feed_forward = way.has_tiles ? models::FeedForward::tiled : models::FeedForward::full;
  if (way.offloads_saved) plan.setup.offload.to = subject.place;
  plan.setup.offload.parameters = plan.setup.offload.gradients = plan.setup.offload.optimizer = way.offloads_state;
  models::Largest longest;
  try {
    longest = find_largest(plan, subject.budget_bytes, way.search, models::Extent::sequence);
  } catch (const nn::BudgetError& error) {
    return {.predicted = error.minimum_bytes(), .numbers = {{"sequence", 0}}};
  }
  Figures figures{.predicted = longest.peak_bytes};
  if (subject.is_measured) {
    models::RunOptions train;
    train.setup = plan.setup;
    train.setup.sizes.sequence = longest.size;
    train.data = "synthetic", train.device = subject.device;
    train.steps = 2, train.eval_batches = 1;
    // A run that keeps everything needs no plan: the prediction is its own peak.
    if (way.search == models::BatchSearch::planned) train.budget_bytes = longest.peak_bytes;
    figures = training_figures(models::Engine(train).run());
  }
  figures.numbers = {{"sequence", longest.size},
                     {"next_peak", longest.next_peak_bytes},
                     {"time_overhead", longest.time_overhead},
                     {"probes", longest.probes}};
  return figures;
}

}  // namespace

std::string run_rules_of_thumb(Rows& rows) {
  std::string text;
  for (const Card& card : rows.sizes<std::vector<Card>>({{"bert-base", 12, 128, true}, {"vit-l16", 40, 197, false}},
                                                        {{"bert-base", 12, 128, true},
                                                         {"bert-base", 12, 512, true},
                                                         {"vit-l16", 40, 197, false},
                                                         {"vit-l16", 48, 197, false}})) {
    models::RunOptions plan;
    plan.setup = setup_of(card.model, plan.setup.batch,
                          {.sequence = card.is_text ? card.tokens : 0, .layers = rows.sizes(2, 0)}, "adamw");
    plan.budget_bytes = static_cast<std::size_t>(card.gib) << rows.sizes(27, 30);
    const std::string on = format_bytes(plan.budget_bytes);
    text +=
        (text.empty() ? "" : "; ") + std::string(card.model) + ", " + std::to_string(card.tokens) + " tokens, on " + on;
    for (const BatchWay& way : batch_ways) {
      if (way.head == models::Head::chunked && !card.is_text) continue;
      const report::Row& row = rows.add({{"model", card.model},
                                         {"tokens", card.tokens},
                                         {"layers", rows.sizes("2", "all")},
                                         {"card", on},
                                         {"how", way.name}},
                                        [&] { return batch_figures(plan, way); });
      const double overhead = number(row, "time_overhead");
      text += (&way == batch_ways ? ": " : ", ") + report::format_fixed(number(row, "batch"), 0) + " " + way.name +
              (overhead > 0 ? " (" + report::format_percent(overhead) + " more time)" : "");
    }
  }
  return text + ".";
}

std::string run_long_sequences(Rows& rows) {
  std::vector<BudgetedModel> subjects;
  if (!rows.options.is_quick) {
    subjects = {large("llama-3.2-1b", 24 * GiB), large("llama-3.2-1b", 80 * GiB), large("llama-3-8b", 80 * GiB)};
  }
  subjects.push_back(small(rows));
  std::string text;
  for (const BudgetedModel& subject : subjects) {
    const std::string in = format_bytes(subject.budget_bytes);
    std::optional<double> first;
    double last = 0;
    for (const LengthWay& way : length_ways) {
      if (way.offloads_saved && subject.place.empty()) continue;
      last = number(rows.add({{"model", subject.setup.model}, {"in", in}, {"how", way.name}},
                             [&] { return length_figures(subject, way); }),
                    "sequence");
      if (!first) first = last;
    }
    text += subject.setup.model + " in " + in + ": from " + report::format_fixed(*first, 0) + " to " +
            report::format_fixed(last, 0) + " tokens; ";
  }
  return text + equal_rows(rows.experiment) + ".";
}

}  // namespace thimble::bench
