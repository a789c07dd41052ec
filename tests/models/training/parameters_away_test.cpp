// `--offload-parameters` in whole runs: bits match the run that keeps its parameters, bytes match predictions;
// checkpoints load either way; a model trains whose parameters exceed the budget.

#include <algorithm>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/fit.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"
#include "support/trained.h"

using namespace thimble;
using trained_test::Run;
using trained_test::train_as_predicted;

namespace {

models::RunOptions options_of(const std::string& model) {
  models::RunOptions options;
  options.setup.model = model;
  options.setup.batch = 4;
  if (model == "char-gpt") {
    options.setup.sizes.layers = 3, options.setup.sizes.heads = 4, options.setup.sizes.width = 64;
    options.setup.sizes.sequence = 16, options.setup.sizes.dropout = 0.1;
  } else {
    options.setup.sizes.image = 32, options.setup.sizes.width = model == "mlp" ? 64 : 8;
    options.setup.optimizer.rate = 0.01;
  }
  options.data = "synthetic";
  options.steps = 20;
  options.eval_every = 8;
  options.eval_batches = 2;
  return options;
}

models::RunOptions away(models::RunOptions options) {
  options.setup.offload.to = offload_test::disk_folder();
  options.setup.offload.parameters = true;
  return options;
}

/// The smallest budget for training with these options.
std::size_t smallest_budget(const models::RunOptions& options) {
  models::Engine engine(options);
  return nn::Planner(engine.runs(), cpu, nn::hardware("cpu"), models::planner_options(options.setup, cpu))
      .smallest()
      .peak_bytes;
}

/// Trains with and without offloaded parameters and compares losses, evaluations and checkpoints.
void check_bits(const std::string& name, const models::RunOptions& options) {
  INFO(name);
  const files_test::TemporaryFolder folder;
  models::RunOptions here = options, gone = away(options);
  here.setup.offload.read_ahead = 1;
  here.save = folder / "here", gone.save = folder / "away";
  const Run plain = train_as_predicted(here), other = train_as_predicted(gone);
  CHECK(other.losses == plain.losses);
  CHECK(other.losses.size() == static_cast<std::size_t>(options.steps));
  CHECK(other.report.evaluation->loss == plain.report.evaluation->loss);
  CHECK(files_test::read_text_file(gone.save) == files_test::read_text_file(here.save));
  CHECK(other.report.measured_tier_bytes > plain.report.measured_tier_bytes);
}

}  // namespace

TEST_CASE("parameters away: what a refusal offers trains within its budget, with the bits of the free run",
          "[store][slow]") {
  const std::string disk = offload_test::disk_folder();
  if (disk.empty()) return;
  models::RunOptions options = options_of("char-gpt");
  options.setup.sizes.width = 256;  // so that parameters and their state are most of the bytes
  const Run plain = train_as_predicted(options);
  models::RunOptions small = options;
  small.budget_bytes = std::size_t{1} << 20;
  try {
    models::Engine(small).plan();
    FAIL("the budget was enough");
  } catch (const nn::BudgetError& error) {
    small.budget_bytes = error.minimum_bytes() - 1;  // so that techniques are offered
  }
  models::ChoiceOptions choices;
  choices.budget_bytes = small.budget_bytes;
  choices.prices_away = true;
  std::size_t followed = 0;
  std::vector<std::string> names;
  for (const nn::LeverPrice& offer : models::offer_techniques(choices, options.setup).fitting) {
    if (!files_test::contains(offer.options, "`offload` FOLDER `")) continue;
    INFO(offer.options);
    models::RunOptions one = options;
    one.setup.offload.to = disk;
    one.setup.offload.parameters = files_test::contains(offer.options, "`offloads_parameters`");
    one.setup.offload.gradients = files_test::contains(offer.options, "`offloads_gradients`");
    one.setup.offload.optimizer = files_test::contains(offer.options, "`offloads_optimizer`");
    one.budget_bytes = offer.minimum_bytes;
    const Run run = train_as_predicted(one);
    CHECK(run.report.measured_peak_bytes <= offer.minimum_bytes);
    CHECK(run.losses == plain.losses);
    CHECK(run.report.evaluation->loss == plain.report.evaluation->loss);
    names.push_back(offer.options);
    ++followed;
  }
  std::sort(names.begin(), names.end());
  CHECK(names ==
        std::vector<std::string>{"`offload` FOLDER `offloads_gradients` `offloads_optimizer`",
                                 "`offload` FOLDER `offloads_optimizer`", "`offload` FOLDER `offloads_parameters`",
                                 "`offload` FOLDER `offloads_parameters` `offloads_gradients` `offloads_optimizer`"});
  CHECK(followed == 4);
}

TEST_CASE("parameters away: the bits of the run that keeps them", "[store]") {
  if (offload_test::disk_folder().empty()) return;
  for (const char* const model : {"mlp", "char-gpt", "resnet18"}) {
    models::RunOptions options = options_of(model);
    check_bits(model, options);
    models::RunOptions parts = options;
    parts.setup.micro_batches = 2;
    parts.setup.optimizer.clip_norm = 0.1;
    check_bits(std::string(model) + ", micro-batches, clipped", parts);
    for (const int units : {0, 2}) {
      models::RunOptions ahead = options;
      ahead.setup.offload.read_ahead = units;
      check_bits(std::string(model) + ", units read ahead: " + std::to_string(units), ahead);
    }
    models::RunOptions masters = options;
    models::set_precision(masters.setup, "O2");
    check_bits(std::string(model) + ", masters", masters);
  }
}

TEST_CASE("parameters away: with the other techniques, in a budget's plan", "[store][slow]") {
  const std::string disk = offload_test::disk_folder();
  if (disk.empty()) return;
  for (const char* const model : {"char-gpt", "resnet18"}) {
    models::RunOptions options = options_of(model);
    options.setup.optimizer.clip_norm = 0;
    const Run plain = train_as_predicted(options);
    models::RunOptions alone = away(options), fused = alone, all = alone;
    fused.setup.fuses_optimizer = true;
    all.setup.offload.optimizer = all.setup.offload.gradients = true;
    for (models::RunOptions one : {alone, fused, all}) {
      one.budget_bytes = smallest_budget(one);
      const Run run = train_as_predicted(one);
      CHECK(run.losses == plain.losses);
      CHECK(run.report.evaluation->loss == plain.report.evaluation->loss);
      REQUIRE(run.report.placed.has_value());
      CHECK(run.report.placed->deviations == 0);
      CHECK(run.report.placed->dynamic_steps == 0);
    }
  }
}

TEST_CASE("parameters away: a run goes on from a checkpoint, either way", "[store]") {
  if (offload_test::disk_folder().empty()) return;
  const files_test::TemporaryFolder folder;
  models::RunOptions whole = options_of("char-gpt");
  const Run expected = train_as_predicted(whole);
  for (const bool begins_away : {false, true}) {
    INFO("begins away " << begins_away);
    models::RunOptions first = begins_away ? away(whole) : whole, second = begins_away ? whole : away(whole);
    first.steps = 12;
    first.save = folder / "checkpoint";
    train_as_predicted(first);
    second.resume = first.save;
    const Run rest = train_as_predicted(second);
    CHECK(rest.losses == std::vector<double>(expected.losses.begin() + 12, expected.losses.end()));
    CHECK(rest.report.evaluation->loss == expected.report.evaluation->loss);
  }
}

TEST_CASE("parameters away: a model trains whose parameters alone exceed the budget", "[store]") {
  if (offload_test::disk_folder().empty()) return;
  models::RunOptions options = options_of("mlp");
  options.setup.sizes.width = 1024, options.setup.sizes.layers = 8;
  options.setup.optimizer.name = "sgd";
  options.setup.batch = 1;
  options.steps = 3, options.eval_every = 0;
  const Run plain = train_as_predicted(options);
  const auto parameter_bytes = static_cast<std::size_t>(plain.report.parameters) * 4;
  models::RunOptions small = away(options);
  small.setup.fuses_optimizer = true;
  const std::size_t needed = models::Engine(small).plan().peak_bytes;
  small.budget_bytes = needed;
  CHECK(small.budget_bytes < parameter_bytes);
  const Run run = train_as_predicted(small);
  CHECK(run.losses == plain.losses);
  CHECK(run.report.measured_peak_bytes <= small.budget_bytes);
  // Without it nothing fits, and the refusal names it.
  models::RunOptions refused = options;
  refused.budget_bytes = models::Engine(away(options)).plan().peak_bytes;
  const std::string message = trained_test::refusal(refused);
  CHECK(files_test::contains(message, "with `offload` FOLDER `offloads_parameters`"));
}

TEST_CASE("parameters away: what it does not go with is refused", "[store]") {
  models::RunOptions options = options_of("mlp");
  options.setup.offload.parameters = true;
  CHECK(files_test::contains(trained_test::refusal(options), "`offloads_parameters`: needs `offload` FOLDER"));
  models::RunOptions here = options_of("mlp");
  here.setup.offload.read_ahead = 2;
  CHECK(files_test::contains(trained_test::refusal(here), "`read_ahead`: needs parameters that are away"));
  here.setup.offload.read_ahead = -1;
  CHECK(files_test::contains(trained_test::refusal(here), "`read_ahead`: expected 0 or more, got -1"));
  models::RunOptions plan;
  plan.setup = options.setup;
  CHECK_THROWS_AS(models::make_plan(plan, {.is_inference = true}), ValueError);
}
