// Answers to the exercises of chapter 7, docs/book/07-from-graph-to-budget.md.

#include <thimble/memory/remat/select.h>
#include <thimble/models/planning/planning.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("exercise 7.1: where arithmetic begins to rule", "[exercise]") {
  // n^3 / 100e9 > 12 n^2 / 20e9 where n > 60.
  const auto is_bound_by_arithmetic = [](double n) { return n * n * n / 100e9 > 12 * n * n / 20e9; };
  CHECK_FALSE(is_bound_by_arithmetic(60));
  CHECK(is_bound_by_arithmetic(61));
}

TEST_CASE("exercise 7.2: more budget is never slower", "[exercise]") {
  models::RunOptions options;
  options.setup.model = "char-gpt", options.setup.batch = 32;
  models::ModelOptions& sizes = options.setup.sizes;
  sizes.layers = 4, sizes.width = 64, sizes.heads = 4, sizes.sequence = 64;
  double before = 1e9;
  for (std::size_t mib = 14; mib <= 42; mib += 4) {
    options.budget_bytes = mib << 20;
    const models::PlanReport report = make_plan(options);
    INFO(mib << " MiB");
    CHECK(report.is_feasible);
    CHECK(report.plan.peak_bytes <= options.budget_bytes);
    CHECK(report.plan.time_overhead <= before);
    before = report.plan.time_overhead;
  }
  CHECK(before == 0);  // 42 MiB: everything is kept
}

TEST_CASE("exercise 7.3: options of a block", "[exercise]") {
  // large <- f (1 unit) <- x; small <- g (50 units) <- large; result <- h <- small. Backward reads large and small.
  remat::Graph graph;
  graph.tensors = {{"x", 0, 0, true}, {"large", 100}, {"small", 10}, {"result", 1}};
  graph.operators = {{"f", {0}, {1}, {1}, 1}, {"g", {1}, {2}, {1, 2}, 50}, {"h", {2}, {3}, {2}, 1}};
  graph.segment_ends = {3};
  const std::vector<remat::KeptPlan> options = remat::block_options(graph);
  // Keep both; then drop the large one, which is cheap per byte; the small one only at the end.
  REQUIRE(options.size() == 3);
  CHECK(options[0].cost.cost == 0);
  CHECK(options[1].cost.cost == 1);
  CHECK(options[2].cost.cost == 51);
}
