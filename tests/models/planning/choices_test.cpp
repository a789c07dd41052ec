// Techniques as choices of `plan` and `train`: separately and together they need the predicted bytes and keep the
// promised bits; conflicting techniques are refused; a price is the need of a plan with the technique.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"
#include "support/trained.h"

using namespace thimble;
using trained_test::Run;

namespace {

constexpr std::size_t choices_MiB = std::size_t{1} << 20;

models::RunOptions choices_options(const std::string& model) {
  models::RunOptions options;
  options.setup.model = model;
  options.setup.batch = 8;
  if (model == "char-gpt") {
    options.setup.sizes.layers = 2, options.setup.sizes.heads = 4, options.setup.sizes.width = 96;
    options.setup.sizes.sequence = 32, options.setup.sizes.dropout = 0.1;
  } else {
    options.setup.sizes.width = 8, options.setup.sizes.image = 32;
  }
  options.data = "synthetic";
  options.steps = 3;
  options.eval_every = 2;
  options.eval_batches = 1;
  return options;
}

Run train_with(const models::RunOptions& options) {
  const Run result = trained_test::run(options);
  CHECK(result.report.predicted_peak_bytes == result.report.measured_peak_bytes);
  CHECK(result.report.arena_rss_bytes <= result.report.measured_peak_bytes);
  if (options.budget_bytes > 0) CHECK(result.report.measured_peak_bytes <= options.budget_bytes);
  return result;
}

/// The smallest budget for training with these options, which have none.
std::size_t smallest_budget(const models::RunOptions& options) {
  models::Engine engine(options);
  return nn::Planner(engine.runs(), cpu, nn::hardware("cpu")).smallest().peak_bytes;
}

/// The smallest budget in the refusal of a budget of one byte.
std::size_t refused_by(models::RunOptions options) {
  options.budget_bytes = 1;
  try {
    models::Engine(options).plan();
  } catch (const nn::BudgetError& error) {
    CHECK(files_test::contains(error.what(), "techniques fits"));
    return error.minimum_bytes();
  }
  FAIL("a budget of one byte was kept");
  return 0;
}

void switch_on(models::Setup& setup, bool fuses, std::int64_t parts, bool has_chunks) {
  setup.fuses_optimizer = fuses;
  setup.micro_batches = parts;
  if (has_chunks) setup.sizes.head = models::Head::chunked;
}

std::string choices_refusal(const models::RunOptions& options, const models::PlanRequest& request) {
  try {
    models::make_plan(options, request);
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("choices: techniques need what was predicted, alone and together, and keep their bits", "[choices]") {
  struct Row {
    const char* model;
    bool fuses;
    std::int64_t parts;
    bool has_chunks;
  };
  const Row rows[] = {{"char-gpt", false, 1, false}, {"char-gpt", true, 1, false}, {"char-gpt", false, 2, false},
                      {"char-gpt", false, 1, true},  {"char-gpt", true, 1, true},  {"char-gpt", false, 4, true},
                      {"resnet18", false, 1, false}, {"resnet18", true, 1, false}, {"resnet18", false, 2, false}};
  for (const Row& row : rows) {
    INFO(row.model << (row.fuses ? ", fused" : "") << ", " << row.parts << " parts"
                   << (row.has_chunks ? ", chunked" : ""));
    models::RunOptions options = choices_options(row.model);
    options.setup.optimizer.clip_norm = 0;
    switch_on(options.setup, row.fuses, row.parts, row.has_chunks);
    const Run free = train_with(options);
    CHECK(free.report.clip_norm == 0);
    if (row.fuses) {
      models::RunOptions unfused = options;
      unfused.setup.fuses_optimizer = false;
      CHECK(train_with(unfused).losses == free.losses);
    }
    options.budget_bytes = smallest_budget(options);
    // The arena grows by 2 MiB at a time, which is coarse for such models.
    CHECK(options.budget_bytes <= free.report.predicted_peak_bytes);
    const Run planned = train_with(options);
    CHECK(planned.losses == free.losses);
    CHECK(planned.report.evaluation->loss == free.report.evaluation->loss);
    if (row.parts == 1 && !row.has_chunks) CHECK(planned.report.time_overhead > 0);
  }
}

TEST_CASE("choices: clipping by default, and without it", "[choices]") {
  models::RunOptions options = choices_options("char-gpt");
  CHECK(train_with(options).report.clip_norm == 1);
  options.setup.fuses_optimizer = true;
  const Run fused = train_with(options);
  CHECK(fused.report.clip_norm == 0);
  options.setup.fuses_optimizer = false;
  options.setup.optimizer.clip_norm = 0;
  CHECK(train_with(options).losses == fused.losses);
}

TEST_CASE("choices: micro-batches are the batch in parts", "[choices]") {
  models::RunOptions options = choices_options("char-gpt");
  const Run whole = train_with(options);
  options.setup.micro_batches = 4;
  const Run parts = train_with(options);
  CHECK(parts.report.predicted_peak_bytes < whole.report.predicted_peak_bytes);
  // Samples and dropout masks are equal; gradients are summed in another order.
  for (std::size_t i = 0; i < whole.losses.size(); ++i) CHECK(parts.losses[i] == Approx(whole.losses[i]).epsilon(1e-3));
  CHECK(parts.report.evaluation->loss == Approx(whole.report.evaluation->loss).epsilon(1e-3));
}

TEST_CASE("choices: what does not go together is refused and named", "[choices]") {
  struct Row {
    void (*change)(models::RunOptions&);
    const char* first;
    const char* second;
    models::PlanRequest request = {};
  };
  const Row rows[] = {
      {[](models::RunOptions& o) { o.setup.fuses_optimizer = true, o.setup.optimizer.clip_norm = 0.5; },
       "`fuses_optimizer`", "`clip_norm` 0.5"},
      {[](models::RunOptions& o) { o.setup.fuses_optimizer = true, o.setup.micro_batches = 2; }, "`fuses_optimizer`",
       "`micro_batches` 2"},
      {[](models::RunOptions& o) {
         o.setup.fuses_optimizer = true, o.setup.micro_batches = models::auto_micro_batches,
         o.budget_bytes = 64 * choices_MiB;
       },
       "`fuses_optimizer`", "`micro_batches` auto"},
      {[](models::RunOptions& o) { o.setup.micro_batches = 3; }, "`micro_batches`: 3", "`batch` 8"},
      {[](models::RunOptions& o) { o.setup.micro_batches = 16; }, "`micro_batches`: 16", "`batch` 8"},
      {[](models::RunOptions& o) { o.setup.micro_batches = models::auto_micro_batches; }, "`micro_batches`", "budget"},
      {[](models::RunOptions& o) {
         o.setup.micro_batches = models::auto_micro_batches, o.budget_bytes = 64 * choices_MiB;
       },
       "`finds_batch`",
       "`micro_batches` auto",
       {.finds_batch = true}},
      {[](models::RunOptions& o) { o.setup.micro_batches = 2; },
       "`is_inference`",
       "`micro_batches`",
       {.is_inference = true}},
      {[](models::RunOptions&) {}, "`is_int8`", "`is_inference`", {.is_int8 = true}},
      {[](models::RunOptions& o) { o.resume = "run"; }, "`resume`", "a new run"},
      {[](models::RunOptions& o) { o.plan = "plan.json"; }, "`plan`", "a new run"},
      {[](models::RunOptions& o) { o.sample = 1; }, "`sample`", "a new run"},
      {[](models::RunOptions& o) { o.captures_steps = true; }, "`captures_steps`", "a new run"},
      {[](models::RunOptions& o) {
         o.setup.model = "mlp", o.setup.sizes = {}, o.setup.sizes.head = models::Head::chunked;
       },
       "`head`: chunked", "mlp"},
  };
  for (const Row& row : rows) {
    models::RunOptions options;
    options.setup = choices_options("char-gpt").setup;
    row.change(options);
    const std::string message = choices_refusal(options, row.request);
    INFO(message);
    CHECK(files_test::contains(message, row.first));
    CHECK(files_test::contains(message, row.second));
    const bool names_a_way = files_test::contains(message, "expected");
    CHECK(names_a_way != row.request.is_inference);
  }
  models::RunOptions options = choices_options("char-gpt");
  options.setup.micro_batches = models::auto_micro_batches;
  CHECK_THROWS_AS(models::Engine(options).plan(), ValueError);
}

TEST_CASE("choices: the price of a technique is what a plan with it needs", "[choices]") {
  for (const char* model : {"char-gpt", "resnet18"}) {
    models::RunOptions options;
    options.setup = choices_options(model).setup;
    options.budget_bytes = choices_MiB;
    const models::PlanReport refused = models::make_plan(options, {.prices_techniques = true});
    REQUIRE_FALSE(refused.is_feasible);
    // Text adds tiles and both; each model has four ways to send state away.
    REQUIRE(refused.techniques.size() == (options.setup.model == "char-gpt" ? 14u : 9u));
    CHECK(refused.techniques.back().options ==
          "`offload` FOLDER `offloads_parameters` `offloads_gradients` `offloads_optimizer`");
    CHECK(refused.techniques[0].options.empty());
    CHECK(refused.techniques[0].minimum_bytes == refused.minimum_bytes);
    for (const nn::LeverPrice& price : refused.techniques) {
      INFO(model << " " << price.options);
      CHECK_FALSE(price.time_overhead_in_budget.has_value());
      models::RunOptions with = options;
      const std::size_t parts = price.options.find("`micro_batches` ");
      switch_on(with.setup, files_test::contains(price.options, "`fuses_optimizer`"),
                parts == std::string::npos ? 1 : std::stoll(price.options.substr(parts + 16)),
                files_test::contains(price.options, "`head` chunked"));
      CHECK(files_test::contains(price.note, "not clipped") ==
            (with.setup.fuses_optimizer && options.setup.model == "char-gpt"));
      CHECK(files_test::contains(price.note, "batch norm") ==
            (with.setup.micro_batches > 1 && options.setup.model == "resnet18"));
      if (with.setup.micro_batches > 2) continue;
      with.setup.offload.parameters = files_test::contains(price.options, "`offloads_parameters`");
      with.setup.offload.gradients = files_test::contains(price.options, "`offloads_gradients`");
      with.setup.offload.optimizer = files_test::contains(price.options, "`offloads_optimizer`");
      if (files_test::contains(price.options, "`feed_forward` tiled")) {
        with.setup.sizes.feed_forward = models::FeedForward::tiled;
      }
      if (files_test::contains(price.options, "`offload`")) {
        with.setup.offload.to = offload_test::disk_folder();
        if (with.setup.offload.to.empty()) continue;
      }
      with.budget_bytes = price.minimum_bytes;
      const models::PlanReport planned = models::make_plan(with);
      CHECK(planned.is_feasible);
      CHECK(planned.techniques.empty());
      // Prices record the plain step, plans round each of its stages to nanoseconds.
      CHECK(planned.plan.time_overhead <= price.time_overhead + 1e-4);
      CHECK(planned.minimum_bytes == price.minimum_bytes);
    }
    CHECK(files_test::contains(refused.why_infeasible.what(), "techniques fits"));
  }
}

TEST_CASE("choices: prices inside of a feasible budget, where asked for", "[choices]") {
  models::RunOptions options;
  options.setup = choices_options("char-gpt").setup;
  const models::PlanReport free = models::make_plan(options);
  CHECK(free.techniques.empty());
  options.budget_bytes = free.keep_everything_bytes;
  const models::PlanReport report = models::make_plan(options, {.prices_techniques = true});
  REQUIRE(report.techniques.size() == 14);
  CHECK(report.techniques[0].time_overhead_in_budget == 0.0);  // exactly, since it is the reference step
  for (const nn::LeverPrice& price : report.techniques) {
    INFO(price.options << " " << price.minimum_bytes << " of " << options.budget_bytes);
    CHECK(price.time_overhead_in_budget.has_value() == (price.minimum_bytes <= options.budget_bytes));
    if (!price.time_overhead_in_budget) continue;  // in so small a model, reading ahead costs more than it saves
    CHECK(*price.time_overhead_in_budget <= price.time_overhead);
  }
  // Techniques already in use are not offered again.
  options.setup.fuses_optimizer = true;
  const models::PlanReport fused = models::make_plan(options, {.prices_techniques = true});
  REQUIRE(fused.techniques.size() == 7);
  const char* const expected[] = {"",
                                  "`head` chunked",
                                  "`feed_forward` tiled",
                                  "`head` chunked `feed_forward` tiled",
                                  "`offload` FOLDER `offloads_optimizer`",
                                  "`offload` FOLDER `offloads_parameters`",
                                  "`offload` FOLDER `offloads_parameters` `offloads_optimizer`"};
  for (std::size_t i = 0; i < 7; ++i) CHECK(fused.techniques[i].options == expected[i]);
}

TEST_CASE("choices: what is sent away costs the time of its transfers", "[choices]") {
  models::Setup setup = choices_options("char-gpt").setup;
  setup.lora.rank = 2;  // fewer gradients than parameters
  models::ChoiceOptions options;
  options.prices_away = true;
  const nn::Hardware machine = nn::hardware("cpu");
  const double plain_s = nn::Planner(models::zero_batch_run(setup), cpu, machine).kept_step_s();
  const auto model = models::make_model(setup, cpu);
  double parameters = 0, gradients = 0;
  for (const nn::NamedTensor& p : model->parameters()) parameters += 4 * static_cast<double>(p.tensor.elements());
  for (const optim::Named& p : model->trainable()) gradients += 4 * static_cast<double>(p.tensor.elements());
  const double state = 2 * gradients;  // AdamW's moments
  std::size_t found = 0;
  for (const nn::LeverPrice& price : models::price_techniques(options, setup)) {
    if (!files_test::contains(price.options, "`offload`")) continue;
    INFO(price.options);
    ++found;
    models::Setup away = setup;
    away.offload.to = "FOLDER";
    away.offload.parameters = files_test::contains(price.options, "`offloads_parameters`");
    away.offload.gradients = files_test::contains(price.options, "`offloads_gradients`");
    away.offload.optimizer = files_test::contains(price.options, "`offloads_optimizer`");
    nn::PlannerOptions plans;
    plans.spilling.offloads = true;
    plans.make_tier = [](memory::Device on) { return memory::make_tier(on); };
    // Parameters are read by forward, backward and update, and written once; the rest is written and read.
    const double bytes = (away.offload.parameters ? 4 * parameters : 0) + (away.offload.gradients ? 2 * gradients : 0) +
                         (away.offload.optimizer ? 2 * state : 0);
    nn::Planner planner(models::zero_batch_run(away), cpu, machine, plans);
    const double seconds = planner.smallest().step_s + bytes / machine.tier_bytes_per_s;
    CHECK(price.time_overhead == Approx(seconds / plain_s - 1).epsilon(1e-9));
  }
  CHECK(found == 4);
  // If no technique fits, offloading is priced, too.
  options.prices_away = false;
  const std::vector<nn::LeverPrice> of_steps = models::price_techniques(options, setup);
  options.budget_bytes = std::ranges::min(of_steps, {}, &nn::LeverPrice::minimum_bytes).minimum_bytes;
  CHECK(models::price_techniques(options, setup).size() == of_steps.size());
  --options.budget_bytes;
  CHECK(models::price_techniques(options, setup).size() == of_steps.size() + 4);
}

TEST_CASE("choices: overheads are counted from one step", "[choices]") {
  const models::Setup plain = choices_options("char-gpt").setup;
  const models::ChoiceOptions choices;
  const nn::Planner planner(models::zero_batch_run(plain), cpu, nn::hardware("cpu"));
  const double seconds = planner.kept_step_s();
  CHECK(models::plain_step_seconds(choices, plain, planner.kept_step_s()) == seconds);
  models::Setup parts = plain;
  parts.micro_batches = 4;
  const nn::Planner other(models::zero_batch_run(parts), cpu, nn::hardware("cpu"));
  CHECK(models::plain_step_seconds(choices, parts, other.kept_step_s()) == Approx(seconds).epsilon(1e-4));
  CHECK(other.kept_step_s() > seconds);  // more calls, and gradients to add up
  models::Setup staged = parts;          // an interleaved schedule has at least a micro-batch for each stage
  staged.layout.ranks = staged.layout.pp = staged.layout.chunks = 2, staged.layout.pipeline = "interleaved",
  staged.sizes.layers = 4;
  models::Setup least = staged;
  least.micro_batches = 2;
  const auto times = nn::node_times(nn::record_step(cpu, models::zero_batch_run(least)), choices.costs);
  CHECK(models::plain_step_seconds(choices, staged, 0) == Approx(2 * nn::step_seconds(times)).epsilon(1e-9));
}

TEST_CASE("choices: the number of micro-batches for a budget", "[choices]") {
  models::RunOptions train = choices_options("char-gpt");
  train.setup.sizes.sequence = 256;  // several granules of the arena
  models::RunOptions options;
  options.setup = train.setup;
  options.setup.micro_batches = models::auto_micro_batches;
  std::vector<nn::Planner> planners;
  for (const std::int64_t parts : {1, 2, 4, 8}) {
    models::Setup setup = train.setup;
    setup.micro_batches = parts;
    planners.emplace_back(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
  }
  const std::size_t most = planners[0].keep_everything().peak_bytes, least = planners[0].smallest().peak_bytes;
  bool has_split = false;
  for (const std::size_t budget : {most, least, least - 1}) {
    options.budget_bytes = budget;
    const models::PlanReport chosen = models::make_plan(options);
    if (budget == most) CHECK(chosen.micro_batches == 1);
    has_split = has_split || chosen.micro_batches > 1;
    CHECK(chosen.is_feasible);
    for (nn::Planner& planner : planners) {
      if (planner.smallest().peak_bytes <= budget) CHECK(chosen.plan.step_s <= planner.fit(budget).step_s);
    }
  }
  CHECK(has_split);
  options.budget_bytes = choices_MiB;
  const models::PlanReport refused = models::make_plan(options);
  CHECK_FALSE(refused.is_feasible);
  CHECK(refused.minimum_bytes < least);
  CHECK(refused.why_infeasible.minimum_bytes() == refused.minimum_bytes);

  // Training uses the chosen number, with the losses of a run without a budget.
  train.setup.micro_batches = models::auto_micro_batches;
  train.budget_bytes = refused_by(train);
  models::Engine engine(train);
  engine.plan();
  const std::int64_t chosen = engine.options().setup.micro_batches;
  CHECK(chosen > 1);
  models::RunOptions of_process = train;  // as a budget for the process, whose heap may grow meanwhile
  of_process.process_budget_bytes =
      memory::outside_bytes(memory::ProcessBase::measure(), engine.outside_facts()).total() +
      (train.budget_bytes + least) / 2;
  of_process.budget_bytes = 0;
  models::Engine in_process(of_process);
  in_process.plan();
  CHECK(in_process.options().setup.micro_batches > 1);
  const Run run = train_with(train);
  train.setup.micro_batches = chosen;
  train.budget_bytes = 0;
  CHECK(train_with(train).losses == run.losses);
}

TEST_CASE("choices: the largest batch is made of whole micro-batches", "[choices]") {
  models::RunOptions options;
  options.setup = choices_options("char-gpt").setup;
  options.setup.micro_batches = 4;
  const std::size_t budget = 16 * choices_MiB;
  const std::int64_t most = models::find_largest(options, budget, models::BatchSearch::planned).size;
  CHECK(most % 4 == 0);
  options.budget_bytes = budget;
  options.setup.batch = most;
  CHECK(models::make_plan(options).is_feasible);
  options.setup.batch = most + 4;
  CHECK_FALSE(models::make_plan(options).is_feasible);
  options.setup.micro_batches = 1;
  CHECK(models::find_largest(options, budget, models::BatchSearch::planned).size < most);
}

TEST_CASE("choices: the longest sequence fits, and one more token does not", "[choices]") {
  for (const bool is_tiled : {false, true}) {
    models::RunOptions options;
    options.setup.model = "tiny-llama", options.setup.batch = 1;
    options.setup.sizes = {.layers = 1, .heads = 2, .width = 32, .hidden = 128};
    options.setup.sizes.head = is_tiled ? models::Head::chunked : models::Head::full;
    options.setup.sizes.feed_forward = is_tiled ? models::FeedForward::tiled : models::FeedForward::full;
    const std::size_t budget = 8 * choices_MiB;
    const models::Largest found =
        models::find_largest(options, budget, models::BatchSearch::planned, models::Extent::sequence);
    CHECK(found.peak_bytes <= budget);
    CHECK(found.next_peak_bytes > budget);
    options.budget_bytes = budget;
    const models::PlanReport longest = models::make_plan(options, {.finds_sequence = true});
    CHECK(longest.is_feasible);
    CHECK(longest.sequence == found.size);
    CHECK(longest.minimum_bytes == found.peak_bytes);
    options.setup.sizes.sequence = found.size + 1;
    const models::PlanReport beyond = models::make_plan(options);
    CHECK_FALSE(beyond.is_feasible);
    CHECK(beyond.minimum_bytes == found.next_peak_bytes);
    CHECK(beyond.sequence == found.size + 1);
  }
}

TEST_CASE("choices: what the search for a sequence refuses", "[choices]") {
  models::RunOptions options;
  options.setup.model = "tiny-llama", options.setup.sizes.layers = 1;
  models::PlanRequest request{.finds_sequence = true};
  const auto message = [&](auto&& change) -> std::string {
    models::RunOptions changed = options;
    change(changed);
    try {
      models::make_plan(changed, request);
      return "nothing was thrown";
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  using Options = models::RunOptions;
  CHECK(message([](Options&) {}).starts_with("`finds_sequence`: no budget"));
  request.finds_batch = true;
  CHECK(message([](Options& o) {
          o.budget_bytes = choices_MiB;
        }).starts_with("`finds_batch`: not with `finds_sequence`"));
  request.finds_batch = false;
  CHECK(message([](Options& o) {
          o.budget_bytes = choices_MiB, o.data = "text";
        }).starts_with("`finds_sequence`: not with `data`"));
  CHECK(message([](Options& o) {
          o.budget_bytes = choices_MiB, o.setup.micro_batches = models::auto_micro_batches;
        }).starts_with("`finds_sequence`: not with `micro_batches` auto"));
  CHECK(message([](Options& o) {
          o.budget_bytes = choices_MiB, o.setup.model = "vit-b16";
        }).starts_with("`finds_sequence`: vit-b16 is over images"));
  options.budget_bytes = choices_MiB;
  CHECK_THROWS_AS(models::make_plan(options, request), nn::BudgetError);
}
