// `plan` predicts `train`: equal flags give equal plans, to the byte, the packed tensor and the second of the cost
// model.

#include <optional>
#include <string>

#include <thimble/core/error.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/model_runs.h"

using namespace thimble;

namespace {

constexpr std::size_t plan_MiB = std::size_t{1} << 20;

models::Setup planned_setup(std::optional<DType> packed) {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = 12, setup.sizes.layers = 4, setup.sizes.heads = 4;
  setup.sizes.width = 128, setup.sizes.sequence = 64, setup.packing.is_allowed = packed.has_value();
  setup.packing.dtype = packed.value_or(DType::bf16);
  return setup;
}

/// A text with 65 characters, the model's default vocabulary.
std::string text_of_65() {
  std::string text;
  for (int i = 0; i < 65 * 400; ++i) text += static_cast<char>('0' + (i * 7 + i / 65) % 65);
  return text;
}

void check_same(const nn::Plan& plan, const nn::Plan& run) {
  CHECK(plan.peak_bytes == run.peak_bytes);
  CHECK(plan.lower_bound_bytes == run.lower_bound_bytes);
  CHECK(plan.peak_by_category == run.peak_by_category);
  CHECK(plan.packed_bytes == run.packed_bytes);
  CHECK(plan.step_s == run.step_s);
  CHECK(plan.time_overhead == run.time_overhead);
  CHECK(plan.description == run.description);
  REQUIRE((plan.tape != nullptr) == (run.tape != nullptr));
  if (!plan.tape) return;
  CHECK(plan.tape->spills == run.tape->spills);
  CHECK(plan.tape->fates == run.tape->fates);
  CHECK(plan.tape->segments == run.tape->segments);
}

}  // namespace

TEST_CASE("plan and run: the same plan", "[plan]") {
  const testing::Threads alone;  // since workspaces of threads change the blocks and so the plan
  const files_test::TemporaryFolder folder;
  const std::string own = folder / "text.txt";
  files_test::write_text_file(own, text_of_65());
  bool has_packed = false;
  for (const std::optional<DType> packed :
       {std::optional<DType>(), std::optional(DType::bf16), std::optional(DType::i8)}) {
    for (const std::size_t budget : {20 * plan_MiB, 22 * plan_MiB, 26 * plan_MiB}) {
      for (const std::string& data : {std::string("synthetic"), own}) {
        INFO((packed ? to_string(*packed) : "exact") << ", " << budget << " bytes, data " << data);
        models::RunOptions options;
        options.setup = planned_setup(packed), options.data = data, options.budget_bytes = budget;
        models::Engine engine(options);
        const models::PlanReport report = models::make_plan(options);
        check_same(report.plan, engine.plan());
        has_packed = has_packed || report.plan.packed_bytes > 0;
        if (data == "synthetic") {
          CHECK(report.setup.sizes.vocabulary == 55);
          continue;
        }
        // Without data, plans with the model's default sizes.
        options.data.clear();
        check_same(models::make_plan(options).plan, engine.plan());
      }
    }
  }
  CHECK(has_packed);
}

TEST_CASE("plan and run: images, micro-batches chosen, no budget", "[plan]") {
  models::RunOptions options;
  options.setup.model = "resnet18", options.setup.batch = 8, options.setup.sizes.image = 64, options.data = "synthetic";
  const models::PlanReport free = models::make_plan(options);
  models::Engine kept(options);
  CHECK(free.plan.peak_bytes == kept.plan().peak_bytes);
  CHECK((free.outside.data > 0 && free.outside.data == kept.data().heap_bytes()));
  options.process_budget_bytes = std::size_t{1} << 33;
  CHECK(models::make_plan(options).outside.data == free.outside.data);
  options.process_budget_bytes = 0;
  options.setup.micro_batches = models::auto_micro_batches;
  options.setup.packing.is_allowed = true;
  options.budget_bytes = (free.minimum_bytes + free.keep_everything_bytes) / 2;
  models::Engine engine(options);
  const models::PlanReport report = models::make_plan(options);
  check_same(report.plan, engine.plan());
  CHECK(report.micro_batches == engine.options().setup.micro_batches);

  options.budget_bytes = plan_MiB;
  std::string text;
  try {
    models::Engine(options).plan();
  } catch (const nn::BudgetError& error) {
    text = error.what();
  }
  CHECK(text.find("needs as little as 1.00 MiB") != std::string::npos);
}

TEST_CASE("plan and run: dropout, clipping or none, an evaluation of another size", "[plan]") {
  const testing::Threads alone;
  models::RunOptions options;
  options.setup = planned_setup(DType::i8), options.data = "synthetic", options.budget_bytes = 24 * plan_MiB;
  for (const double clip : {0.0, 0.5}) {
    for (const double dropout : {0.0, 0.25}) {
      for (const std::int64_t batches : {std::int64_t{0}, std::int64_t{3}}) {
        INFO("clip " << clip << ", dropout " << dropout << ", " << batches << " batches of evaluation");
        options.setup.optimizer.clip_norm = clip, options.setup.sizes.dropout = dropout;
        options.eval_batches = batches, options.eval_every = batches;
        check_same(models::make_plan(options).plan, models::Engine(options).plan());
      }
    }
  }
}

TEST_CASE("plan and run: data that are not there, or too few", "[plan]") {
  const files_test::TemporaryFolder folder;
  models::RunOptions plan;
  plan.setup = planned_setup({});
  plan.data = folder / "none.txt";
  CHECK_THROWS_AS(models::make_plan(plan), FileError);
  files_test::write_text_file(plan.data, "few");
  CHECK_THROWS_AS(models::make_plan(plan), ValueError);
}
