// Experiments on checkpointing: a transformer's activations under it, against depth, sequence and batch, and the cost
// of a batch in micro-batches.

#include <algorithm>
#include <cmath>
#include <limits>

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/experiments/techniques.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/memory/units.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace {

struct NamedSchedule {
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

const NamedSchedule named_schedules[] = {{"keep every layer", remat::keep_all},
                                         {"each layer", each_layer},
                                         {"sqrt(n) layers", remat::square_root},
                                         {"halves of halves", remat::recursive_halves}};

/// Bytes kept when backward begins: all outside the layers, one result per dropped segment, and everything of the
/// other layers.
std::int64_t theory_bytes(const models::Setup& setup, const remat::ScheduleTree& schedule) {
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.precision.dtype);
  const auto bytes = [&](const std::vector<models::Term>& terms) {
    return models::bytes_of(terms, memory::Category::activation, setup.batch);
  };
  std::int64_t total = bytes(theory.outside);
  for (std::size_t i = 0; i < schedule.items.size(); i += 1 + schedule.items[i].size) {
    const remat::ScheduleTree::Item& item = schedule.items[i];
    const models::LayerTheory& last = theory.layers[item.end - 1];
    total += bytes(item.is_dropped() ? models::recomputed(last) : last.kept);
  }
  return total;
}

void add_pass(Rows& rows, const NamedSchedule& form, std::int64_t layers, std::int64_t sequence, models::Build build) {
  const models::Setup setup =
      setup_of("char-gpt", 4, {.sequence = sequence, .layers = layers, .heads = 4, .width = 64, .build = build});
  rows.add({{"checkpointed", form.name},
            {"build", build == models::Build::textbook ? "textbook" : "fused"},
            {"layers", layers},
            {"sequence", sequence}},
           [&] {
             const remat::ScheduleTree schedule = form.schedule(static_cast<std::size_t>(layers));
             StepForm technique;
             const TapeGraph graph = nn::record_step(rows.options.device, technique_run(setup, technique));
             technique.tape = std::make_shared<TapePlan>(tape_plan_of(graph, block_cuts(graph, "gpt.h."), schedule));
             const auto pass = rows.both([&](memory::Device device) { return pass_bytes(device, setup, technique); });
             std::size_t runs = 0;  // forwards of all layers together
             for (const remat::ScheduleTree::Item& item : schedule.items) runs += item.end - item.begin;
             return Figures{.theory = theory_bytes(setup, schedule),
                            .predicted = pass.predicted.kept,
                            .measured = pass.measured.kept,
                            .numbers = {{"peak", pass.predicted.peak},
                                        {"peak_measured", pass.measured.peak},
                                        {"runs", static_cast<double>(runs) / static_cast<double>(layers)}},
                            .compared = {{"peak", pass.predicted.peak, pass.measured.peak}},
                            .processes = {{pass.predicted.process.arena_bytes, pass.measured.process}}};
           });
}

/// "kept O(n), peak O(sqrt n)" for each form and build of the rows.
std::string growths(const std::vector<report::Row>& rows, const char* x) {
  std::string text;
  for (std::size_t begin = 0, end; begin < rows.size(); begin = end) {
    std::vector<report::Point> kept, peak;
    const auto& first = rows[begin].config;
    for (end = begin; end < rows.size() && std::equal(first.begin(), first.begin() + 2, rows[end].config.begin());
         ++end) {
      kept.push_back({number(rows[end], x), number(rows[end], "predicted")});
      peak.push_back({number(rows[end], x), number(rows[end], "peak")});
    }
    text += (text.empty() ? "" : "; ") + setting(rows[begin], "checkpointed") + " (" + setting(rows[begin], "build") +
            "): kept " + growth_in_words(growth_exponent(kept), x) + ", peak " +
            growth_in_words(growth_exponent(peak), x);
  }
  return text;
}

models::Setup batch_setup(const Rows& rows, std::int64_t batch) {
  return setup_of("char-gpt", batch,
                  {.sequence = rows.sizes(32, 64), .layers = 6, .heads = 4, .width = rows.sizes(64, 128)});
}

/// The fastest step of each run over some rounds in which they take turns, so that other work on the machine disturbs
/// all of them equally.
std::vector<double> fastest_ms(const Rows& rows, const std::vector<nn::MakeRun>& runs) {
  std::vector<double> fastest(runs.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < rows.sizes(2, 6); ++round) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      fastest[i] = std::min(fastest[i], nn::profile_training(rows.options.device, runs[i], 2).ms_per_step);
    }
  }
  return fastest;
}

/// Bytes kept when backward begins, and the peaks of the step.
Figures step_figures(const Rows& rows, const models::Setup& setup, const StepForm& technique, double ms,
                     std::int64_t theory) {
  const auto pass = rows.both([&](memory::Device device) { return pass_bytes(device, setup, technique); });
  const Comparison step = compare(rows.options.device, technique_run(setup, technique));
  return {.theory = theory,
          .predicted = pass.predicted.kept,
          .measured = pass.measured.kept,
          .numbers = {{"live", step.predicted.peak_live_bytes},
                      {"peak", step.predicted.peak_bytes},
                      {"peak_measured", step.measured.peak_bytes},
                      {"ms_per_step", ms}},
          .compared = {{"peak", step.predicted.peak_bytes, step.measured.peak_bytes}},
          .processes = {{step.predicted.peak_bytes, process_bytes(step.measured)},
                        {pass.predicted.process.arena_bytes, pass.measured.process}}};
}

std::string equal_peaks(const report::Experiment& experiment) {
  return "Kept and peak bytes are predicted as measured in " + count_rows(experiment.rows, is_equal) + " rows.";
}

}  // namespace

std::optional<double> growth_exponent(std::span<const report::Point> points) {
  if (points.size() < 3) {
    throw ValueError("growth_exponent: expected at least 3 points, got " + std::to_string(points.size()));
  }
  const auto last = points.last(3);
  const double factor = last[2].x / last[1].x;
  if (!(factor > 1) || std::abs(last[1].x * factor - last[0].x * factor * factor) > 1e-9 * last[2].x) {
    throw ValueError("growth_exponent: expected x in a rising geometric sequence, got " + format_real(last[0].x) +
                     ", " + format_real(last[1].x) + ", " + format_real(last[2].x));
  }
  const double before = last[1].y - last[0].y, after = last[2].y - last[1].y;
  if (before <= 0 || after <= 0) return std::nullopt;
  return std::log(after / before) / std::log(factor);
}

std::string growth_in_words(std::optional<double> exponent, const std::string& x) {
  if (!exponent) return "O(1)";
  const std::string exact = " (exponent " + report::format_fixed(*exponent, 2) + ")";
  if (*exponent < 0.25) return "O(log " + x + ")" + exact;
  if (*exponent < 0.75) return "O(sqrt(" + x + "))" + exact;
  if (*exponent < 1.5) return "O(" + x + ")" + exact;
  return "O(" + x + "^2)" + exact;
}

std::string run_checkpoint_depth(Rows& rows) {
  for (const NamedSchedule& form : named_schedules) {
    for (const std::int64_t n : rows.sizes<std::vector<std::int64_t>>({1, 4, 16}, {1, 4, 16, 64})) {
      add_pass(rows, form, n, 64, models::Build::fused);
    }
  }
  return "By the last three depths: " + growths(rows.experiment.rows, "layers") + ". " + equal_peaks(rows.experiment);
}

std::string run_checkpoint_sequence(Rows& rows) {
  for (const models::Build build : {models::Build::textbook, models::Build::fused}) {
    for (const NamedSchedule& form : {named_schedules[0], named_schedules[1]}) {
      for (const std::int64_t s :
           rows.sizes<std::vector<std::int64_t>>({64, 128, 256, 512}, {64, 128, 256, 512, 1024})) {
        add_pass(rows, form, 4, s, build);
      }
    }
  }
  return "By the last three lengths: " + growths(rows.experiment.rows, "sequence") + ". " +
         equal_peaks(rows.experiment);
}

std::string checkpoint_batch_verdict(std::span<const CheckpointedBatch> batches) {
  const auto saved = [](const CheckpointedBatch& b) { return 1 - b.checkpointed_bytes / b.plain_bytes; };
  const auto slower = [](const CheckpointedBatch& b) { return b.checkpointed_ms / b.plain_ms - 1; };
  const auto first = std::find_if(batches.begin(), batches.end(), [&](const auto& b) { return saved(b) > 0; });
  if (first == batches.end()) return "Checkpointing saves nothing at any of these batches.";
  std::string text = "Checkpointing saves from a batch of " + std::to_string(first->batch) + " on";
  for (const CheckpointedBatch& b : batches) {
    text += (&b == batches.data() ? ": " : ", ") + report::format_percent(saved(b)) + " at " + std::to_string(b.batch) +
            " (" + report::format_percent(slower(b)) + " slower)";
  }
  // Every sample saves the same bytes. The share rises because the model's bytes weigh less.
  const bool is_rising =
      std::is_sorted(batches.begin(), batches.end(), [&](const auto& a, const auto& b) { return saved(a) < saved(b); });
  text += is_rising ? ". The share rises with the batch" : ". The share does not rise with every batch";
  return text + (first->batch == 16 ? ", and 16 is where it begins: the advice holds here."
                                    : ", and nothing begins at 16: the advice \"batch >= 16\" is not a rule.");
}

std::string run_checkpoint_batch(Rows& rows) {
  std::vector<CheckpointedBatch> batches;
  StepForm plain, checkpointed;
  checkpointed.checkpoint = Checkpoint::blocks;
  for (const std::int64_t batch : {1, 2, 4, 8, 16, 32}) {
    const models::Setup setup = batch_setup(rows, batch);
    const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.precision.dtype);
    rows.say("batch " + std::to_string(batch));
    const std::vector<double> ms = fastest_ms(rows, {technique_run(setup, plain), technique_run(setup, checkpointed)});
    rows.add({{"batch", batch}, {"checkpointed", "no"}},
             step_figures(rows, setup, plain, ms[0], theory.kept_bytes(memory::Category::activation, batch)));
    const double live = number(rows.experiment.rows.back(), "live");
    report::Row& row = rows.add(
        {{"batch", batch}, {"checkpointed", "each layer"}},
        step_figures(rows, setup, checkpointed, ms[1], theory.kept_bytes(memory::Category::activation, batch, true)));
    row.numbers.emplace_back("saved", 1 - number(row, "live") / live);
    batches.push_back({batch, live, number(row, "live"), ms[0], ms[1]});
  }
  return checkpoint_batch_verdict(batches) + " " + equal_peaks(rows.experiment);
}

std::string run_accumulation(Rows& rows) {
  constexpr std::int64_t batch = 32;
  const models::Setup setup = batch_setup(rows, batch);
  const models::Theory theory = models::make_theory(setup.model, setup.sizes, setup.precision.dtype);
  std::vector<StepForm> techniques;
  std::vector<nn::MakeRun> runs;
  for (const std::int64_t parts : {1, 2, 4, 8, 16, 32}) {
    techniques.emplace_back().micro_batches = parts;
    runs.push_back(technique_run(setup, techniques.back()));
  }
  rows.say("times");
  const std::vector<double> ms = fastest_ms(rows, runs);
  for (std::size_t i = 0; i < techniques.size(); ++i) {
    const std::int64_t parts = techniques[i].micro_batches;
    report::Row& row = rows.add({{"batch", batch}, {"micro_batches", parts}}, [&] {
      return step_figures(rows, setup, techniques[i], ms[i],
                          theory.kept_bytes(memory::Category::activation, batch / parts));
    });
    row.numbers.emplace_back("share", number(row, "live") / number(rows.experiment.rows.front(), "live"));
  }
  const report::Row &whole = rows.experiment.rows.front(), &least = rows.experiment.rows.back();
  return "In " + setting(least, "micro_batches") + " micro-batches the activations fall " +
         report::format_trimmed(number(whole, "predicted") / number(least, "predicted"), 2) +
         "-fold, the live peak to " + report::format_percent(number(least, "share")) +
         ", since state and gradients stay; a step takes " + report::format_fixed(ms.back() / ms.front(), 2) +
         " times as long. " + equal_peaks(rows.experiment);
}

}  // namespace thimble::bench
