// A budget as a user meets it: training inside of it, plans for it, and what is said when there is none.

#include <thimble/core/error.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/trained.h"

using namespace thimble;

namespace {

constexpr std::size_t budget_MiB = std::size_t{1} << 20;

models::TrainOptions budget_options() {
  models::TrainOptions options;
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

trained_test::Run run_within(const models::TrainOptions& options) {
  return trained_test::run(options, [&](const nn::Progress& p) {
    if (options.budget_bytes > 0) CHECK(p.peak_bytes <= options.budget_bytes);
  });
}

}  // namespace

TEST_CASE("budget: training inside of one has the losses of training without", "[budget]") {
  models::TrainOptions options = budget_options();
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
  CHECK_THROWS_AS(models::prepare_training(options), nn::BudgetError);
}

TEST_CASE("budget: plans by name", "[budget]") {
  models::PlanOptions options;
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

  options.is_inference = true;
  const models::PlanReport forward = models::make_plan(options);
  CHECK(forward.plan.peak_bytes < free.minimum_bytes);
  CHECK(forward.parameters == free.parameters);
}

TEST_CASE("budget: the largest batch", "[budget]") {
  models::PlanOptions options;
  options.setup = budget_options().setup;
  CHECK_THROWS_AS(([&] {
                    models::PlanOptions unbounded = options;
                    unbounded.finds_batch = true;
                    models::make_plan(unbounded);
                  })(),
                  ValueError);
  const std::size_t budget = 24 * budget_MiB;
  const std::int64_t most = models::largest_batch(options, budget);
  REQUIRE(most > 1);
  const auto fits = [&](std::int64_t batch) {
    options.setup.batch = batch;
    options.budget_bytes = budget;
    return models::make_plan(options).is_feasible;
  };
  CHECK(fits(most));
  CHECK_FALSE(fits(most + 1));
  CHECK_THROWS_AS(models::largest_batch(options, budget_MiB), nn::BudgetError);
}
