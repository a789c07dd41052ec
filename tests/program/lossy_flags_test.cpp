// Packing by operators' names, from the flag to the plan, and the report on packed gradients.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/autograd/node.h>
#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/packing_report.h>
#include <thimble/core/error.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/pack_rules.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/refusal.h"

using namespace thimble;
using files_test::contains;
using refusal_test::refusal;

namespace {

models::Setup flags_setup() {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = 12, setup.sizes.layers = 4, setup.sizes.heads = 4;
  setup.sizes.width = 128, setup.sizes.sequence = 64;
  return setup;
}

models::Setup parsed(const std::string& value, models::Setup from = flags_setup()) {
  const auto setup = std::make_shared<models::Setup>(std::move(from));
  CLI::App app;
  bench::add_technique_flags(app, setup, {models::FlagSet::plans});
  app.parse("--allow-lossy" + (value.empty() ? "" : "=" + value));
  return *setup;
}

std::string refused(const std::string& value) {
  return refusal<ValueError>([&] { parsed(value); });
}

models::RunOptions training(const models::Setup& setup, std::size_t budget_MiB) {
  models::RunOptions options;
  options.setup = setup, options.data = "synthetic", options.budget_bytes = budget_MiB << 20;
  return options;
}

}  // namespace

TEST_CASE("lossy flags: dtypes by operator", "[lossy_flags]") {
  const models::Setup plain = parsed("");
  CHECK(plain.packing.is_allowed);
  CHECK(plain.packing.dtype == DType::bf16);
  CHECK(plain.packing.packs_rest);
  CHECK(plain.packing.rules.empty());
  CHECK(parsed("i8").packing.dtype == DType::i8);

  const models::Setup named = parsed("i8:gelu,f8e4m3:linear");
  CHECK(named.packing.rules == std::vector<nn::PackRule>{{"gelu", DType::i8}, {"linear", DType::f8e4m3}});
  CHECK_FALSE(named.packing.packs_rest);
  const models::Setup all_but = parsed("none:attention,f16");
  CHECK(all_but.packing.rules == std::vector<nn::PackRule>{{"attention", std::nullopt}});
  CHECK(all_but.packing.packs_rest);
  CHECK(all_but.packing.dtype == DType::f16);
  const nn::SpillPolicy spilling = models::planner_options(named, cpu).spilling;
  CHECK(spilling.packs);
  CHECK(spilling.rules == named.packing.rules);
  CHECK_FALSE(spilling.packs_rest);
  for (const std::string text : {"i8", "f16,none:attention", "i8:gelu,f8e4m3:linear", "bf16,i8:gelu,none:linear"}) {
    CHECK(models::technique("allows_lossy").flag.field.value(parsed(text)) == text);
  }
}

TEST_CASE("lossy flags: by operator where tensors are in 16 bits", "[lossy_flags]") {
  models::RunOptions options;
  options.setup = parsed("i8:linear");
  models::set_precision(options.setup, "bf16");
  options.budget_bytes = std::size_t{1} << 30;
  const models::PlanReport report = models::make_plan(options);
  const std::vector<nn::Plan> plans = report.planner->plans();
  const auto plan = std::ranges::find_if(plans, [](const nn::Plan& p) { return p.packed_bytes > 0; });
  REQUIRE(plan != plans.end());
  REQUIRE(plan->packed.size() == 1);
  const nn::PackedResults& packed = plan->packed[0];
  CHECK(packed.name == "linear");
  CHECK(packed.dtype == DType::i8);
  CHECK(packed.packed_bytes * 32 == packed.bytes * 17);  // 17 bytes for 16 elements of 2 bytes; multiples of 64
  const models::PackedBytes all = models::packed_bytes_of(*plan);
  CHECK(all.bytes == packed.bytes);
  CHECK(all.packed_bytes == packed.packed_bytes);
}

TEST_CASE("lossy flags: errors name the value and the expected ones", "[lossy_flags]") {
  CHECK(contains(refused("i7"), "expected one of bf16, f16, f8e4m3, f8e5m2, i8, got 'i7'"));
  CHECK(contains(refused("f32:gelu"), "expected one of bf16, f16, f8e4m3, f8e5m2, i8, none, got 'f32'"));
  CHECK(contains(refused("i8:"), "expected an operator's name after the colon, as in i8:gelu, got 'i8:'"));
  CHECK(contains(refused("i8,"), "got ''"));
  CHECK(contains(refused("none"), "got 'none'"));
  CHECK(contains(refused("none:attention"),
                 "expected a dtype besides none, as in none:attention,bf16, got 'none:attention'"));
  CHECK(contains(refused("i8,bf16"), "expected one dtype without an operator's name, got 'i8,bf16'"));
  CHECK(contains(refused("i8:gelu,bf16:gelu"), "expected 'gelu' once, got 'i8:gelu,bf16:gelu'"));

  // Only recording a step shows whether it has the operator.
  models::RunOptions plan;
  plan.setup = parsed("i8:gelo");
  const std::string unknown = refusal<ValueError>([&] { models::make_plan(plan); });
  CHECK(contains(unknown, "'gelo' names no operator of this step whose results can be packed to i8; expected "));
  for (const char* const name : {"linear", "layer_norm", "attention"}) CHECK(contains(unknown, name));
  CHECK_FALSE(contains(unknown, "cross_entropy"));  // a loss does not wait
  // bf16 saves nothing on f16 results.
  plan.setup = parsed("bf16:attention");
  CHECK(models::make_plan(plan).is_feasible);
  models::set_precision(plan.setup, "O1");
  CHECK(contains(refusal<ValueError>([&] { models::make_plan(plan); }), "'attention' names no operator"));
  plan.setup = parsed("i8:attention", plan.setup);
  CHECK(models::make_plan(plan).is_feasible);
}

TEST_CASE("lossy flags: rules in plans", "[lossy_flags]") {
  CHECK(nn::PackRule{"gelu", {}}.names("gelu_tanh"));
  CHECK(nn::PackRule{"gelu", {}}.names("gelu"));
  CHECK_FALSE(nn::PackRule{"gel", {}}.names("gelu"));
  CHECK_FALSE(nn::PackRule{"gelu_tanh", {}}.names("gelu"));

  nn::SpillPolicy spilling =
      models::planner_options(parsed("i8:layer,none:layer_norm,f8e4m3:linear,bf16"), cpu).spilling;
  spilling.smallest = 1;
  models::Setup small = flags_setup();
  small.sizes.layers = 1;
  CHECK_THROWS_AS(nn::packed_plan(models::zero_batch_run(small), cpu,
                                  [&] {
                                    nn::SpillPolicy unknown = spilling;
                                    unknown.rules.push_back({"none_such", DType::i8});
                                    return unknown;
                                  }()),
                  ValueError);
  const nn::Plan plan = nn::packed_plan(models::zero_batch_run(small), cpu, spilling);
  std::size_t linear = 0, others = 0, bytes = 0;
  for (const TapePlan::Spill& spill : plan.tape->spills) {
    const std::string name = plan.tape->types[spill.node]->name;
    CHECK(name != "layer_norm");  // the longer name counts
    CHECK(spill.dtype == (name.starts_with("linear") ? DType::f8e4m3 : DType::bf16));
    ++(name.starts_with("linear") ? linear : others);
  }
  CHECK(linear > 0);
  CHECK(others > 0);
  std::size_t tensors = 0;
  for (const nn::PackedResults& packed : plan.packed) tensors += packed.tensors, bytes += packed.bytes;
  CHECK(tensors == plan.tape->spills.size());
  CHECK(bytes == plan.packed_bytes);

  // In a budget's plan, and in the run's plan.
  models::RunOptions options;
  options.setup = parsed("i8:linear");
  options.data = "synthetic";
  options.budget_bytes = std::size_t{22} << 20;
  const nn::Plan planned = models::make_plan(options).plan;
  REQUIRE(planned.packed.size() == 1);
  CHECK(planned.packed[0].name == "linear");
  CHECK(planned.packed[0].dtype == DType::i8);
  CHECK(planned.packed[0].bytes == planned.packed_bytes);
  CHECK(models::Engine(training(options.setup, 22)).plan().packed == planned.packed);
  const auto json = nlohmann::json::parse(bench::to_json_text(planned.packed));
  REQUIRE(json.size() == 1);
  CHECK(json[0] == nlohmann::json{{"operator", "linear"},
                                  {"dtype", "i8"},
                                  {"tensors", planned.packed[0].tensors},
                                  {"bytes", planned.packed_bytes},
                                  {"packed_bytes", planned.packed[0].packed_bytes}});
}

TEST_CASE("lossy flags: a resumed run reports the gradients of its weights and batch", "[lossy_flags]") {
  const files_test::TemporaryFolder folder;
  models::RunOptions options = training(parsed("i8"), 22);
  options.setup.sizes.dropout = 0, options.eval_batches = 1;
  std::vector<double> losses;
  const auto train = [&](std::int64_t steps) {
    options.steps = steps;
    models::Engine(options).run([&](const nn::Progress& p) { losses.push_back(p.loss); });
  };
  options.save = folder / "file";
  train(1);
  options.resume = std::exchange(options.save, "");
  train(2);
  REQUIRE(losses.size() == 2);
  CHECK(models::Engine(options).packing_gradients().exact_loss == losses[1]);
}

TEST_CASE("lossy flags: the report of gradients", "[lossy_flags]") {
  const auto report_of = [](models::Setup setup, std::size_t budget_MiB) {
    return models::Engine(training(setup, budget_MiB)).packing_gradients();
  };
  double before = 1;
  for (const char* dtype : {"f8e5m2", "i8"}) {
    models::Engine engine(training(parsed(dtype), 22));
    REQUIRE(engine.plan().packed_bytes > 0);
    const nn::GradientReport report = engine.packing_gradients();
    INFO(dtype << "\n" << bench::to_lines(report));
    CHECK(report.exact_loss == report.lossy_loss);
    CHECK(report.parameters.size() == 4 * 12 + 4);
    CHECK(report.all.relative_error > 0);
    CHECK(report.all.relative_error < before);  // i8 is more precise near the largest
    CHECK(report.smallest_cosine() > 0.99);
    CHECK(report.smallest_cosine() < 1);
    before = report.all.relative_error;
    // Repeats exactly, and does not affect training.
    CHECK(bench::to_json_text(engine.packing_gradients()) == bench::to_json_text(report));
    const auto json = nlohmann::json::parse(bench::to_json_text(report));
    CHECK(json["loss"] == report.exact_loss);
    CHECK(json["relative_error"] == report.all.relative_error);
    REQUIRE(json["parameters"].size() == report.parameters.size());
    const std::string lines = bench::to_lines(report);
    for (std::size_t i = 0; i < report.parameters.size(); ++i) {
      const nn::GradientError& e = report.parameters[i];
      CHECK(json["parameters"][i]["name"] == e.name);
      CHECK(json["parameters"][i]["cosine"] == e.cosine);
      CHECK(json["parameters"][i]["relative_error"] == e.relative_error);
      CHECK(contains(lines, "  " + e.name + " "));
    }
  }
  // With a scaled loss, in micro-batches.
  models::Setup mixed = parsed("i8");
  models::set_precision(mixed, "O1");
  mixed.micro_batches = 2;
  mixed.batch = 24;
  const nn::GradientReport scaled = report_of(mixed, 20);
  CHECK(std::isfinite(scaled.all.norm));
  CHECK(scaled.all.norm < 100);  // divided by the scale
  CHECK(scaled.all.relative_error > 0);
  CHECK(scaled.all.relative_error < 0.05);
  // A budget that needs no packing gives exact gradients.
  const nn::GradientReport none = report_of(parsed("i8"), 256);
  CHECK(none.all.relative_error == 0);
  CHECK(none.all.cosine == Approx(1));
  CHECK(none.all.norm > 0);
}
