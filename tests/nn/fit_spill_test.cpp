// fit with spills: offloading and packing keep budgets to the byte; offloading changes no bit.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/fit/spilling.h>
#include <thimble/nn/fit/stages.h>

#include "support/catch.h"
#include "support/offload_data.h"

using namespace thimble;

namespace {

models::Setup spill_setup(const std::string& model) {
  models::Setup setup;
  setup.model = model;
  models::ModelOptions& sizes = setup.sizes;
  if (model == "char-gpt") {
    setup.batch = 24;
    sizes.layers = 6, sizes.width = 64, sizes.heads = 4, sizes.sequence = 48, sizes.dropout = 0.1;
  } else {
    setup.batch = 16;
    sizes.image = 32, sizes.width = 8;
  }
  return setup;
}

nn::PlannerOptions offloading(const std::string& folder) {
  nn::PlannerOptions options;
  options.spilling.offloads = true;
  options.make_tier = [folder](memory::Device device) {
    return std::make_shared<memory::FileTier>(device, offload_test::options_at(folder));
  };
  return options;
}

nn::Hardware fast_disk() {
  nn::Hardware hardware = nn::hardware("cpu");
  hardware.tier_bytes_per_s = 20e9;
  return hardware;
}

struct Trained {
  std::vector<float> losses;
  std::vector<std::vector<float>> parameters;
  std::size_t peak_bytes = 0;
};

// Three steps in an arena of the plan's peak.
Trained train(const models::Setup& setup, const nn::Plan& plan) {
  memory::Options options;
  options.arena.capacity_bytes = plan.peak_bytes;
  options.plans = plan.placement;
  const memory::Stack stack = memory::make_resource(cpu, options);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(7);
  const GeneratorScope random(generator);
  const auto model = models::make_model(setup.model, setup.sizes);
  const auto optimizer = models::make_optimizer(setup, *model);
  models::Batch batch = model->empty_batch(setup.batch, cpu);
  if (!model->is_text()) fill_normal(batch.input, 0, 1);
  nn::StepOptions step;
  step.clip_norm = models::clip_norm(setup, model->is_text());
  plan.apply(step, cpu);
  Trained trained;
  for (int i = 0; i < 3; ++i) {
    if (stack.placed) stack.placed->begin_step();
    const Tensor loss = nn::training_step(
        *optimizer, [&](std::int64_t) { return model->loss(batch); }, step);
    if (stack.placed) stack.placed->end_step();
    trained.losses.push_back(static_cast<float>(item(loss)));
  }
  for (const nn::NamedTensor& named : model->parameters()) {
    trained.parameters.push_back(to_host<float>(named.tensor));
  }
  trained.peak_bytes = stack.arena->statistics().peak_committed_bytes;
  return trained;
}

std::size_t measured_peak(const models::Setup& setup, const nn::Plan& plan) {
  const nn::MakeRun make = [&](memory::Device device) {
    auto run = models::zero_batch_run(setup)(device);
    plan.apply(run->options(), device);
    return run;
  };
  return nn::profile_training(cpu, make, 3, false, plan.placement).peak_bytes;
}

}  // namespace

TEST_CASE("fit: offloading needs what it says, and changes no bit", "[fit][spill][slow]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  for (const char* const model : {"char-gpt", "resnet18"}) {
    INFO(model);
    const models::Setup setup = spill_setup(model);
    nn::Planner exact(models::zero_batch_run(setup), cpu, fast_disk());
    nn::Planner planner(models::zero_batch_run(setup), cpu, fast_disk(), offloading(folder));
    CHECK(planner.keep_everything().peak_bytes == exact.keep_everything().peak_bytes);
    const Trained plain = train(setup, planner.keep_everything());
    std::vector<nn::Plan> plans = planner.plans();
    plans.erase(std::remove_if(plans.begin(), plans.end(), [](const nn::Plan& p) { return p.offloaded_bytes == 0; }),
                plans.end());
    REQUIRE(plans.size() > 1);
    for (std::size_t i = 0; i < plans.size(); i += 1 + plans.size() / 4) {
      const nn::Plan& plan = plans[i];
      INFO(plan.description);
      CHECK(plan.packed_bytes == 0);
      if (plan.peak_bytes >= exact.smallest().peak_bytes) {
        CHECK(plan.time_overhead < exact.fit(plan.peak_bytes).time_overhead);
      }
      CHECK(measured_peak(setup, plan) == plan.peak_bytes);
      const Trained trained = train(setup, plan);
      CHECK(trained.peak_bytes <= plan.peak_bytes);
      CHECK(trained.losses == plain.losses);
      CHECK(trained.parameters == plain.parameters);
    }
    // Neither more budget nor more options ever cost time.
    double before = 1e9;
    const std::size_t least = exact.smallest().peak_bytes, most = exact.keep_everything().peak_bytes;
    for (std::size_t k = 0; k <= 8; ++k) {
      const std::size_t budget = least + (most - least) * k / 8;
      const nn::Plan& plan = planner.fit(budget);
      CHECK(plan.peak_bytes <= budget);
      CHECK(plan.time_overhead <= before);
      CHECK(plan.time_overhead <= exact.fit(budget).time_overhead);
      before = plan.time_overhead;
    }
  }
}

TEST_CASE("fit: transfers that nothing hides are charged, both ways", "[fit][spill]") {
  const TapeGraph graph = nn::record_step(cpu, models::zero_batch_run(spill_setup("char-gpt")));
  nn::Hardware machine = nn::hardware("cpu");
  machine.tier_bytes_per_s = 1e6;  // so slow that compute hides nearly nothing
  const std::vector<nn::NodeTimes> times = nn::node_times(graph, machine);
  nn::SpillPolicy policy;
  policy.offloads = true;
  const std::vector<nn::Spillable> uses = nn::spillables(graph);
  const double computing = nn::step_seconds(times);  // of the whole step, more than any stage can hide
  const std::vector<std::uint32_t> cuts = nn::cut_points(graph);
  const remat::Option option;
  const auto variants = [&] {
    std::vector<nn::SpillVariant> all;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      nn::SpillVariants::Stage stage{cuts[i], cuts[i + 1], {}};
      for (std::uint32_t s = 0; s < uses.size(); ++s) {
        if (uses[s].node != TapeGraph::none && uses[s].node >= stage.first && uses[s].node < stage.end) {
          stage.kept.push_back(s);
        }
      }
      for (nn::SpillVariant& v : nn::SpillVariants(graph, times, machine, policy).of(option, stage)) all.push_back(v);
    }
    return all;
  };
  const std::vector<nn::SpillVariant> all = variants();
  CHECK(all.size() > 0);
  std::size_t largest = 0;
  for (const nn::SpillVariant& variant : all) {
    double seconds = 0;  // one way
    for (const TapePlan::Spill& spill : variant.spills) {
      for (const nn::Spillable& use : uses) {
        if (use.node != spill.node || use.which != spill.which) continue;
        seconds += static_cast<double>(use.bytes) / machine.tier_bytes_per_s;
        largest = std::max(largest, use.bytes);
      }
    }
    const double writing = 1e-9 * static_cast<double>(variant.option.forward_time - option.forward_time);
    const double reading = 1e-9 * static_cast<double>(variant.option.recompute_time - option.recompute_time);
    CHECK(writing <= seconds + 1e-6);
    CHECK(writing >= seconds - computing);
    CHECK(reading <= seconds + 1e-6);
    CHECK(reading >= seconds - computing);
    CHECK(reading > 0);
  }
  policy.smallest = largest;  // just large enough to spill
  CHECK(variants().size() > 0);
  policy.smallest = largest + 1;
  CHECK(variants().empty());

  // Packing passes over both forms once in forward and once in backward.
  policy = {};
  policy.packs = true, policy.packed = DType::i8;
  for (const nn::SpillVariant& variant : variants()) {
    double bytes = 0;
    for (const TapePlan::Spill& spill : variant.spills) {
      for (const nn::Spillable& use : uses) {
        if (use.node != spill.node || use.which != spill.which) continue;
        const auto elements = static_cast<std::int64_t>(use.bytes / size_of(use.dtype));
        bytes += static_cast<double>(use.bytes + packed_bytes(elements, DType::i8));
      }
    }
    const remat::Time pass = nn::nanoseconds(bytes / machine.bytes_per_s);
    CHECK(pass > 0);
    CHECK(variant.option.forward_time - option.forward_time == pass);
    CHECK(variant.option.recompute_time - option.recompute_time == pass);
  }
  CHECK(variants().size() > 1);
}

TEST_CASE("fit: a budget that offloading keeps in less time, or that nothing else keeps", "[fit][spill]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  models::Setup setup = spill_setup("resnet101");
  setup.batch = 24;
  nn::Planner exact(models::zero_batch_run(setup), cpu, fast_disk());
  nn::Planner planner(models::zero_batch_run(setup), cpu, fast_disk(), offloading(folder));
  const std::vector<nn::Plan> plans = planner.plans();
  const auto least = std::ranges::find_if(plans, [](const nn::Plan& plan) { return plan.offloaded_bytes > 0; });
  REQUIRE(least != plans.end());
  const bool is_alone = exact.smallest().peak_bytes > least->peak_bytes;
  CHECK((is_alone || least->step_s < exact.fit(least->peak_bytes).step_s));
  const Trained spilled = train(setup, *least);
  CHECK(spilled.peak_bytes == least->peak_bytes);
  CHECK(spilled.losses == train(setup, planner.keep_everything()).losses);
}

TEST_CASE("fit: packing needs what it says and rounds a little", "[fit][spill][slow]") {
  models::Setup setup = spill_setup("char-gpt");
  setup.batch *= 3;  // puts several granules between plans
  nn::Planner exact(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
  const Trained plain = train(setup, exact.keep_everything());
  for (const DType dtype : {DType::bf16, DType::f8e4m3, DType::i8}) {
    INFO(to_string(dtype));
    nn::PlannerOptions options;
    options.spilling.packs = true;
    options.spilling.packed = dtype;
    nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"), options);
    const std::vector<nn::Plan> plans = planner.plans();
    // Packing pays off at some budget, and allowing it never makes a plan slower.
    const auto found = std::find_if(plans.begin(), plans.end(), [&](const nn::Plan& plan) {
      return plan.packed_bytes > 0 && plan.time_overhead < exact.fit(plan.peak_bytes).time_overhead;
    });
    REQUIRE(found != plans.end());
    CHECK(found->offloaded_bytes == 0);
    CHECK(found->make_tier == nullptr);
    for (std::size_t i = 0; i < std::min<std::size_t>(plans.size(), 6); ++i) {
      const std::size_t budget = plans[i].peak_bytes;
      CHECK(planner.fit(budget).time_overhead <= exact.fit(budget).time_overhead);
    }
    CHECK(measured_peak(setup, *found) == found->peak_bytes);
    const Trained packed = train(setup, *found);
    CHECK(packed.losses != plain.losses);
    CHECK(packed.losses[0] == plain.losses[0]);  // forward reads nothing packed
    for (std::size_t i = 1; i < 3; ++i) CHECK(std::fabs(packed.losses[i] - plain.losses[i]) < 0.01 * plain.losses[i]);
  }
}

TEST_CASE("fit: spills are not made unless they are asked for", "[fit][spill]") {
  const models::Setup setup = spill_setup("resnet18");
  nn::Planner planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"));
  for (const nn::Plan& plan : planner.plans()) {
    CHECK(plan.offloaded_bytes + plan.packed_bytes == 0);
    if (plan.tape) CHECK(plan.tape->spills.empty());
  }
  nn::PlannerOptions without_tier;
  without_tier.spilling.offloads = true;
  CHECK_THROWS_AS(nn::Planner(models::zero_batch_run(setup), cpu, nn::hardware("cpu"), without_tier), PlanError);
}
