// Budgets that no plan fits: the refusal names the smallest plan, then the techniques that fit, with true bytes, and
// how many were dropped or not tried.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/choices.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;

namespace {

models::Setup offers_setup(const std::string& model) {
  models::Setup setup;
  setup.model = model;
  setup.batch = 8;
  if (model == "char-gpt") {
    setup.sizes.layers = 2, setup.sizes.heads = 4, setup.sizes.width = 96;
    setup.sizes.sequence = 32, setup.sizes.dropout = 0.1;
  } else {
    setup.sizes.width = 8, setup.sizes.image = 32;
  }
  return setup;
}

}  // namespace

TEST_CASE("offers: a refusal names the smallest plan, then what fits, the cheapest first", "[offers]") {
  for (const char* model : {"char-gpt", "resnet18"}) {
    INFO(model);
    models::RunOptions options;
    options.setup = offers_setup(model);
    options.setup.batch = 32;  // several granules of the arena
    if (options.setup.model == "char-gpt") options.setup.sizes.sequence = 128;
    const std::size_t least = models::make_plan(options).minimum_bytes;
    for (const std::size_t budget : {least - 1, least / 2, std::size_t{1}}) {
      if (budget < least - 1 && options.setup.model != "char-gpt") continue;
      models::ChoiceOptions choices;
      choices.budget_bytes = budget;
      choices.prices_away = true;
      std::vector<nn::LeverPrice> expected = models::price_techniques(choices, options.setup);
      const std::size_t known = expected.size() - 1 + 2;  // the table has no rows for offloaded and packed tensors
      std::erase_if(expected, [](const auto& price) { return !price.time_overhead_in_budget; });
      const nn::LeverOffers offers = models::offer_techniques(choices, options.setup);
      INFO(nn::to_text(offers));
      CHECK(offers.known == known);
      CHECK(offers.untried == 0);
      double before = -1;
      std::size_t of_table = 0;
      for (const nn::LeverPrice& price : offers.fitting) {
        CHECK(price.minimum_bytes <= budget);
        REQUIRE(price.time_overhead_in_budget);
        CHECK(*price.time_overhead_in_budget >= before);
        before = *price.time_overhead_in_budget;
        if (price.options == "`offload` FOLDER" || price.options == "`allows_lossy`") continue;
        ++of_table;
        const auto found = std::find_if(expected.begin(), expected.end(),
                                        [&](const auto& other) { return other.options == price.options; });
        REQUIRE(found != expected.end());
        CHECK(found->minimum_bytes == price.minimum_bytes);
        CHECK(*found->time_overhead_in_budget == Approx(before).epsilon(1e-4));
      }
      CHECK(of_table == expected.size());
      options.budget_bytes = budget;
      options.refusal_ms = 0;
      const models::PlanReport refused = models::make_plan(options);
      REQUIRE_FALSE(refused.is_feasible);
      const std::string text = refused.why_infeasible.what();
      CHECK(files_test::contains(text, "the smallest needs " + memory::exact_bytes(least)));
      CHECK(files_test::contains(text, nn::to_text(offers)));
      CHECK(refused.techniques.size() == 1 + offers.fitting.size());
      CHECK(refused.known_techniques == known);
      if (budget == 1) {
        CHECK(offers.fitting.empty());
        CHECK(nn::to_text(offers) == "none of " + std::to_string(known) + " techniques fits");
      }
    }
  }
}

TEST_CASE("offers: a refusal that has no time left says what it did not try", "[offers]") {
  models::ChoiceOptions choices;
  choices.budget_bytes = 1;
  choices.refusal_ms = 1e-3;  // counts from the start of the process
  const models::Setup setup = offers_setup("char-gpt");
  const nn::LeverOffers none = models::offer_techniques(choices, setup);
  CHECK(none.known == 15);
  CHECK(none.untried == none.known);
  CHECK(files_test::contains(nn::to_text(none), "15 of 15 techniques were not tried"));
  CHECK(nn::to_text(nn::LeverOffers{{{"`head` chunked", 2048, 0.5, 0.25, ""}}, 15, 3}) ==
        "it fits with `head` chunked, which needs 2.00 KiB (2048 B), at 25 % more time; 3 of 15 techniques were not "
        "tried, for want of time or memory: a plan with `prices_techniques` tries them all");
  CHECK(nn::to_text(nn::LeverOffers{{{"`micro_batches` 2", 900, 0.5, 0.1, ""},
                                     {"`micro_batches` 4", 900, 0.5, 0.2, ""},
                                     {"`micro_batches` 8", 901, 0.5, 0.3, ""},
                                     {"`head` chunked", 800, 0.5, 0.4, ""}},
                                    4,
                                    0}) ==
        "it fits with `micro_batches` 2, which needs 900 B, at 10 % more time, or with `head` chunked, which needs "
        "800 B, at 40 % more time");
  CHECK(nn::to_text(nn::LeverOffers{{}, 1, 0}) == "none of 1 technique fits");
  CHECK(nn::to_text(nn::LeverOffers{{}, 5, 2})
            .starts_with("none of the 3 techniques fits that were tried; 2 of 5 techniques were not tried"));
  CHECK(nn::to_text(nn::LeverOffers{{}, 0, 0}).empty());
}

TEST_CASE("offers: no plan needs less than parameters, gradients and optimizer state at their most", "[offers]") {
  void (*const rows[])(models::Setup&) = {
      [](models::Setup&) {},
      [](models::Setup& s) { s.fuses_optimizer = true, s.optimizer.clip_norm = 0; },
      [](models::Setup& s) { s.micro_batches = 4; },
      [](models::Setup& s) { s.precision.policy = "O2", s.precision.dtype = DType::f16; },
      [](models::Setup& s) { s.optimizer.name = "sgd"; },
      [](models::Setup& s) { s.model = "resnet18", s.sizes = {}, s.sizes.width = 8, s.sizes.image = 32; },
      [](models::Setup& s) { s.lora.rank = 2; },
  };
  for (const auto& change : rows) {
    models::Setup setup = offers_setup("char-gpt");
    change(setup);
    INFO("row " << (&change - rows) << ", " << setup.model);
    nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
    const std::size_t bound = nn::state_bound(models::zero_batch_run(setup), cpu);
    CHECK(bound > 0);
    CHECK(bound <= planner.smallest().lower_bound_bytes);
    CHECK(planner.least_load() <= planner.smallest().peak_bytes);
    std::size_t least = planner.smallest().peak_bytes;
    for (const nn::Plan& plan : planner.plans()) least = std::min(least, plan.peak_bytes);
    CHECK(planner.least_load() <= least);
  }
}
