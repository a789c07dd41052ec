// Experiment: which batch of BERT-base and of ViT-Large fits on a card, plain and planned. Nothing is run for real.

#include <thimble/bench/experiments/experiments.h>
#include <thimble/bench/report/text.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>

namespace thimble::bench {
namespace rules_of_thumb_detail {

struct Rule {
  const char* model;
  std::int64_t gib;
  std::int64_t tokens;  ///< of a sample
  bool is_text;
};

models::PlanOptions plan_options(const Rule& rule, bool is_quick) {
  models::PlanOptions options;
  options.setup.model = rule.model;
  if (rule.is_text) options.setup.sizes.sequence = rule.tokens;
  options.setup.optimizer = "adamw";
  if (is_quick) options.setup.sizes.layers = 2;
  options.budget_bytes = static_cast<std::size_t>(rule.gib) << 30;
  if (is_quick) options.budget_bytes >>= 3;
  return options;
}

struct Way {
  const char* name;
  models::BatchSearch search;
  models::Head head;
};

constexpr Way ways[] = {{"plain", models::BatchSearch::plain, models::Head::full},
                        {"planned, at most a third more time", models::BatchSearch::in_a_third, models::Head::full},
                        {"planned, smallest", models::BatchSearch::planned, models::Head::full},
                        {"planned, smallest, chunked head", models::BatchSearch::planned, models::Head::chunked}};

/// The largest batch, what it needs, and what one more would.
report::Row row_of(const Rule& rule, models::PlanOptions plan, const Way& way) {
  plan.setup.sizes.head = way.head;
  const models::Largest largest = find_largest(plan, plan.budget_bytes, way.search);
  report::Row row;
  row.config = {{"model", std::string(rule.model)},
                {"tokens", rule.tokens},
                {"layers", plan.setup.sizes.layers > 0 ? std::to_string(plan.setup.sizes.layers) : "all"},
                {"card", format_bytes(plan.budget_bytes)},
                {"how", std::string(way.name)}};
  row.predicted_bytes = static_cast<std::int64_t>(largest.peak_bytes);
  row.numbers = {{"batch", static_cast<double>(largest.size)},
                 {"time_overhead", largest.time_overhead},
                 {"probes", static_cast<double>(largest.probes)}};
  if (largest.next_peak_bytes > 0) {
    row.numbers.emplace_back("next_peak", static_cast<double>(largest.next_peak_bytes));
  }
  return row;
}

/// "34 plain", "49 planned (8.7 % more time)".
std::string in_words(const report::Row& row) {
  const double overhead = *report::find_number(row, "time_overhead");
  std::string text = report::format_fixed(*report::find_number(row, "batch"), 0) + " " +
                     report::format_setting(*report::find_setting(row, "how"));
  if (overhead > 0) text += " (" + report::format_quantity(overhead, report::Unit::percent, 1) + " more time)";
  return text;
}

}  // namespace rules_of_thumb_detail

report::Experiment rules_of_thumb_experiment(const ExperimentOptions& options) {
  using namespace rules_of_thumb_detail;
  report::Experiment experiment;
  experiment.name = "rules-of-thumb";
  experiment.title = "Which batch fits on which card";
  experiment.question = "What is the largest batch of BERT-base in 12 GiB, and of ViT-Large in 40 and 48 GiB?";
  experiment.theory =
      "plain: everything is kept, the arena places blocks on demand. Planned: the smallest plan of the planner at that "
      "batch, also with the chunked head where the model is one over tokens. All are dry runs of AdamW in f32 on the "
      "cpu's kernels: the batch named fits, to the byte, and one more does not. A card keeps some of its memory for "
      "itself; that is not counted.";
  using report::Unit;
  experiment.columns = {{"batch", "largest batch", Unit::plain, 0},
                        {"next_peak", "peak with one more", Unit::bytes},
                        {"time_overhead", "time over keeping everything", Unit::percent, 1},
                        {"probes", "batches tried", Unit::plain, 0}};
  std::vector<Rule> rules{{"bert-base", 12, 128, true},
                          {"bert-base", 12, 512, true},
                          {"vit-l16", 40, 197, false},
                          {"vit-l16", 48, 197, false}};
  if (options.is_quick) rules = {{"bert-base", 12, 128, true}, {"vit-l16", 40, 197, false}};
  for (const Rule& rule : rules) {
    const models::PlanOptions plan = plan_options(rule, options.is_quick);
    const std::string subject =
        std::string(rule.model) + ", " + std::to_string(rule.tokens) + " tokens, on " + format_bytes(plan.budget_bytes);
    std::string found;
    for (const Way& way : ways) {
      if (way.head == models::Head::chunked && !rule.is_text) continue;
      options.progress("rules-of-thumb: " + subject + ", " + way.name);
      experiment.rows.push_back(row_of(rule, plan, way));
      found += (found.empty() ? ": " : ", ") + in_words(experiment.rows.back());
    }
    experiment.verdict += (experiment.verdict.empty() ? "" : "; ") + subject + found;
  }
  experiment.verdict += ".";
  return experiment;
}

}  // namespace thimble::bench
