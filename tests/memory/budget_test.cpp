// Budgets as a user meets them: training within one, plans for one, and the message if no plan fits.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/trained.h"

using namespace thimble;

namespace {

constexpr std::size_t budget_MiB = std::size_t{1} << 20;
constexpr std::size_t block_unit = 64;  // the arena rounds sizes up to it

models::RunOptions budget_options() {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 16;
  options.setup.sizes.layers = 6, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 48, options.setup.sizes.dropout = 0.1;
  options.data = "synthetic";
  options.steps = 4;
  options.eval_every = 2;
  options.eval_batches = 1;
  options.sample = 8;
  return options;
}

trained_test::Run run_within(const models::RunOptions& options) {
  return trained_test::run(options, [&](const nn::Progress& p) {
    if (options.budget_bytes > 0) CHECK(p.peak_bytes <= options.budget_bytes);
  });
}

}  // namespace

TEST_CASE("budget: training inside of one has the losses of training without", "[budget]") {
  models::RunOptions options = budget_options();
  const trained_test::Run plain = run_within(options);
  CHECK(plain.report.time_overhead == 0);
  const std::size_t all = plain.report.measured_peak_bytes;
  for (const std::size_t part : {9, 6}) {
    options.budget_bytes = all * part / 10;
    INFO("budget " << options.budget_bytes << " of " << all);
    const trained_test::Run run = run_within(options);
    CHECK(run.report.predicted_peak_bytes == run.report.measured_peak_bytes);
    CHECK(run.report.arena_rss_bytes <= run.report.measured_peak_bytes);
    CHECK(run.report.measured_peak_bytes <= options.budget_bytes);
    CHECK(run.report.time_overhead > 0);
    CHECK(run.losses == plain.losses);
    CHECK(run.report.evaluation->loss == plain.report.evaluation->loss);
    CHECK(run.report.sample == plain.report.sample);
  }
  options.budget_bytes = budget_MiB;
  CHECK_THROWS_AS(models::Engine(options).plan(), nn::BudgetError);
}

TEST_CASE("budget: plans by name", "[budget]") {
  models::RunOptions options;
  options.setup = budget_options().setup;
  const models::PlanReport free = models::make_plan(options);
  CHECK(free.is_feasible);
  CHECK(free.segments.empty());
  CHECK(free.plan.peak_bytes == free.keep_everything_bytes);
  CHECK(free.minimum_bytes < free.keep_everything_bytes);

  options.budget_bytes = (free.minimum_bytes + free.keep_everything_bytes) / 2;
  const models::PlanReport planned = models::make_plan(options);
  CHECK(planned.is_feasible);
  CHECK_FALSE(planned.segments.empty());
  CHECK(planned.plan.peak_bytes <= options.budget_bytes);
  CHECK(planned.plan.time_overhead > 0);

  options.budget_bytes = free.minimum_bytes - 1;
  const models::PlanReport refused = models::make_plan(options);
  CHECK_FALSE(refused.is_feasible);
  CHECK(refused.plan.peak_bytes == free.minimum_bytes);
  CHECK(refused.why_infeasible.minimum_bytes() == free.minimum_bytes);

  const models::PlanReport forward = models::make_plan(options, {.is_inference = true});
  CHECK(forward.plan.peak_bytes < free.minimum_bytes);
  CHECK(forward.parameters == free.parameters);
  // The load: the largest sum of live arena blocks, from the run's own events.
  const nn::MemoryProfile run = nn::profile_training(dry(cpu), models::inference_run(options.setup), 1, true);
  std::map<std::uint64_t, std::size_t> live;
  std::size_t load = 0;
  for (const memory::Trace::Event& event : run.events) {
    if (event.action == memory::Trace::Action::allocate) live[event.block] = round_up(event.bytes, block_unit);
    if (event.action == memory::Trace::Action::free) live.erase(event.block);
    std::size_t sum = 0;
    for (const auto& [block, bytes] : live) sum += bytes;
    load = std::max(load, sum);
  }
  CHECK(forward.plan.lower_bound_bytes == load);
  CHECK(forward.plan.lower_bound_bytes < forward.plan.peak_bytes);
}

TEST_CASE("budget: a segment keeps results and what operators save, and views for nothing", "[budget]") {
  models::RunOptions options;
  options.setup = budget_options().setup;
  const models::PlanReport free = models::make_plan(options);
  std::size_t views = 0;
  for (const std::size_t part : {1, 4, 7}) {
    options.budget_bytes = free.minimum_bytes + (free.keep_everything_bytes - free.minimum_bytes) * part / 8;
    const models::PlanReport report = models::make_plan(options);
    const TapeGraph& graph = report.planner->graph();
    const TapePlan& tape = *report.plan.tape;
    REQUIRE(report.segments.size() == tape.segments.size());
    std::vector<std::size_t> kept(tape.segments.size()), dropped(tape.segments.size());
    for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
      std::size_t innermost = tape.segments.size();  // inner segments follow the segment around them
      for (std::size_t s = 0; s < tape.segments.size(); ++s) {
        if (tape.segments[s].first <= n && n < tape.segments[s].end) innermost = s;
      }
      if (innermost == tape.segments.size()) continue;
      const TapeGraph::Node& node = graph.nodes[n];
      const auto storage = [&](std::uint32_t v) { return v == TapeGraph::none ? v : graph.values[v].storage; };
      const auto is_input = [&](std::uint32_t v) {
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](std::uint32_t i) { return storage(i) == storage(v); });
      };
      dropped[innermost] += keeps_output(tape.fates[n]) ? 0 : 1;
      if (keeps_output(tape.fates[n])) is_input(node.output) ? ++views : kept[innermost] += graph.bytes_of(node.output);
      for (const std::uint32_t v : node.saved) {
        if (keeps_saved(tape.fates[n]) && v != node.output && !is_input(v)) kept[innermost] += graph.bytes_of(v);
      }
    }
    for (std::size_t s = 0; s < tape.segments.size(); ++s) {
      INFO("part " << part << ", segment " << s << ", " << report.segments[s].path);
      CHECK(report.segments[s].kept_bytes == kept[s]);
      CHECK(report.segments[s].dropped == dropped[s]);
    }
  }
  CHECK(views > 0);
}

TEST_CASE("budget: steps that leave their plan are counted, and the first one ends a strict run", "[budget]") {
  models::RunOptions options = budget_options();
  options.budget_bytes = 64 * budget_MiB;
  models::RunOptions smaller = options;
  smaller.setup.batch /= 2;
  const std::vector<memory::StepPlacement> other = models::Engine(smaller).plan().placement;
  for (const bool is_strict : {false, true}) {
    INFO("strict " << is_strict);
    options.is_strict = is_strict;
    models::Engine engine(options);
    nn::Plan plan = engine.plan();
    plan.placement = other;  // whose steps ask for other blocks
    engine.follow(plan);
    std::size_t steps = 0;
    const auto train = [&] { return engine.run([&](const nn::Progress&) { ++steps; }); };
    if (is_strict) {
      CHECK_THROWS_AS(train(), PlanError);
      CHECK(steps == 0);
    } else {
      CHECK(train().placed->deviations == 4);
      CHECK(steps == 4);
    }
  }
}

TEST_CASE("budget: the largest batch", "[budget]") {
  models::RunOptions options;
  options.setup = budget_options().setup;
  CHECK_THROWS_AS(models::make_plan(options, {.finds_batch = true}), ValueError);
  const std::size_t budget = 24 * budget_MiB;
  const std::int64_t most = models::find_largest(options, budget, models::BatchSearch::planned).size;
  REQUIRE(most > 1);
  const auto fits = [&](std::int64_t batch) {
    options.setup.batch = batch;
    options.budget_bytes = budget;
    return models::make_plan(options).is_feasible;
  };
  CHECK(fits(most));
  CHECK_FALSE(fits(most + 1));
  CHECK_THROWS_AS(models::find_largest(options, budget_MiB, models::BatchSearch::planned), nn::BudgetError);
  // A plan may take at most a third more time.
  constexpr auto in_a_third = models::BatchSearch::in_a_third;
  const models::Largest found = models::find_largest(options, budget, in_a_third);
  const auto is_fast = [&](std::int64_t batch) {
    return fits(batch) && models::make_plan(options).plan.time_overhead <= 1.0 / 3;
  };
  CHECK((is_fast(found.size) && !is_fast(found.size + 1) && found.size < most));
  CHECK(found.peak_bytes <= budget);
  CHECK_THROWS_AS(models::find_largest(options, budget_MiB, in_a_third), nn::BudgetError);
}
