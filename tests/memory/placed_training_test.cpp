// Training in a placed arena: losses are equal bit for bit, bytes are as predicted, every step is replayed.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>

#include "support/catch.h"

namespace {

using namespace thimble;

struct Case {
  const char* model;
  models::ModelOptions sizes;
  std::int64_t batch;
  const char* optimizer;
};

std::vector<Case> cases() {
  models::ModelOptions gpt, image;
  gpt.layers = 2, gpt.heads = 2, gpt.width = 32, gpt.sequence = 32, gpt.dropout = 0.1;
  image.image = 16, image.width = 8;
  return {{"mlp", {}, 64, "momentum"},
          {"mlp", {}, 8, "sgd"},
          {"char-gpt", gpt, 4, "adamw"},
          {"resnet18", image, 4, "momentum"},
          {"resnet18", image, 8, "adam"}};
}

/// Trains on one batch of noise and records the bits of every loss.
class NotedRun final : public nn::TrainingRun {
 public:
  NotedRun(const models::Setup& setup, memory::Device device, std::vector<std::uint32_t>& losses)
      : losses_(losses),
        generator_(setup.seed),
        scope_(generator_),
        model_(models::make_model(setup.model, setup.sizes, {device, setup.precision.dtype})),
        optimizer_(models::make_optimizer(setup, *model_)),
        batch_(model_->empty_batch(setup.batch, device)) {
    options_.clip_norm = 1;
  }

  nn::StepOptions& options() override { return options_; }
  void step() override {
    const Tensor loss = nn::training_step(
        *optimizer_, [this](std::int64_t) { return model_->loss(batch_); }, options_);
    // Reads in place: item() would allocate, which a dry run does not plan.
    if (!loss.device().is_dry) losses_.push_back(std::bit_cast<std::uint32_t>(*memory::Pin(loss).as<float>()));
  }
  std::int64_t parameters() const override { return model_->parameter_count(); }

 private:
  std::vector<std::uint32_t>& losses_;
  RandomGenerator generator_;
  GeneratorScope scope_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  models::Batch batch_;
  nn::StepOptions options_;
};

}  // namespace

TEST_CASE("placed training: the same bits in as many bytes as predicted", "[placed][profile]") {
  constexpr std::size_t steps = 4;
  CHECK(nn::placement_options(cpu, 2).last_stage == memory::PlacementStage::improvement);
  CHECK(nn::placement_options(cpu, 3).last_stage == memory::PlacementStage::greedy);
  for (const Case& c : cases()) {
    models::Setup setup;
    setup.model = c.model, setup.sizes = c.sizes, setup.batch = c.batch, setup.optimizer.name = c.optimizer;
    INFO(setup.model << ", batch " << setup.batch << ", " << setup.optimizer.name);
    std::vector<std::uint32_t> losses;
    const nn::MakeRun make = [&](memory::Device device) { return std::make_unique<NotedRun>(setup, device, losses); };

    const std::vector<memory::StepPlacement> plans = nn::plan_steps(cpu, make);
    REQUIRE(plans.size() == 2);
    for (const memory::StepPlacement& plan : plans) {
      CHECK_FALSE(plan.buffers.empty());
      CHECK(plan.placement.ratio() <= 1.005);
    }
    const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, steps, true, plans);
    CHECK(losses.empty());
    const nn::MemoryProfile measured = nn::profile_training(cpu, make, steps, true, plans);
    const std::vector<std::uint32_t> placed_losses = losses;
    losses.clear();
    const nn::MemoryProfile dynamic = nn::profile_training(cpu, make, steps, true);
    CHECK(placed_losses == losses);
    CHECK(losses.size() == steps);
    CHECK(losses.front() != losses.back());

    CHECK(predicted.peak_bytes == measured.peak_bytes);
    CHECK(predicted.peak_height_bytes == measured.peak_height_bytes);
    CHECK(measured.peak_height_bytes >= measured.lower_bound_bytes);
    const auto nodes = nn::record_step(cpu, make).nodes;
    CHECK(static_cast<std::ptrdiff_t>(measured.nodes) ==
          std::count_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.needs.any(); }));
    CHECK(measured.rss_bytes == measured.peak_bytes);
    CHECK(predicted.events == measured.events);  // all three runs give tensors equal events
    CHECK(measured.events == dynamic.events);
    CHECK(measured.step_ends == dynamic.step_ends);
    CHECK(measured.setup_end == dynamic.setup_end);
    CHECK(measured.peak_live_bytes == dynamic.peak_live_bytes);
    CHECK(measured.peak_by_category == dynamic.peak_by_category);
    CHECK(dynamic.placed == memory::PlacedArena::Statistics{});
    for (const nn::MemoryProfile* profile : {&predicted, &measured}) {
      CHECK(profile->placed.steps == steps);
      CHECK(profile->placed.deviations == 0);
      CHECK(profile->placed.dynamic_steps == 0);
      CHECK(profile->placed.live_blocks == 0);
    }
    // Besides the region and longer-lived blocks, only a little rounding and holes from the setup.
    CHECK(static_cast<double>(measured.peak_height_bytes) <= 1.02 * static_cast<double>(dynamic.peak_height_bytes));
  }
}

TEST_CASE("placed training: steps that nobody begins are refused, not made beside their plan", "[placed][profile]") {
  models::Setup setup;
  setup.model = "mlp", setup.batch = 16, setup.optimizer.name = "momentum";
  std::vector<std::uint32_t> losses;
  const nn::MakeRun make = [&](memory::Device device) { return std::make_unique<NotedRun>(setup, device, losses); };
  for (const memory::Device device : {cpu, dry(cpu)}) {
    memory::Options options = nn::profile_options(device);
    options.plans = nn::plan_steps(device, make);
    const memory::Stack stack = memory::make_resource(device, options);
    const ResourceScope scope(stack.top);
    const std::unique_ptr<nn::TrainingRun> run = make(device);
    losses.clear();
    CHECK_THROWS_AS(run->step(), PlanError);
    CHECK(losses.empty());
    for (int i = 0; i < 3; ++i) {
      const memory::PlacedArena::Step step(*stack.placed);
      run->step();
    }
    CHECK_THROWS_AS(run->step(), PlanError);  // the last step has ended
    CHECK(stack.placed->statistics().steps == 3);
    CHECK(stack.placed->statistics().deviations == 0);
    CHECK(losses.size() == (device.is_dry ? 0 : 3));
  }
}

TEST_CASE("placed training: a step that is not the planned one gives the same bits too", "[placed][profile]") {
  models::Setup setup;
  setup.model = "mlp", setup.batch = 16, setup.optimizer.name = "momentum";
  std::vector<std::uint32_t> losses;
  const nn::MakeRun make = [&](memory::Device device) { return std::make_unique<NotedRun>(setup, device, losses); };
  const std::vector<memory::StepPlacement> plans = nn::plan_steps(cpu, make);
  setup.batch = 24;  // changes the bytes of every request
  const nn::MemoryProfile foreign = nn::profile_training(cpu, make, 3, false, plans);
  const std::vector<std::uint32_t> foreign_losses = losses;
  losses.clear();
  const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), make, 3, false, plans);
  nn::profile_training(cpu, make, 3);
  CHECK(foreign_losses == losses);
  CHECK(foreign.placed.deviations == 3);
  CHECK(predicted.placed == foreign.placed);
  CHECK(predicted.peak_bytes == foreign.peak_bytes);  // a dry run predicts the cost of deviating, too
}

TEST_CASE("placed: a later step is not searched below the height of the one before", "[placed]") {
  const memory::PlacementOptions options{.seconds = 60, .node_limit = 20'000};
  int searched = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<memory::Trace::Event> events;
    std::vector<std::uint64_t> live;
    const auto add = [&](memory::Trace::Action action, std::uint64_t block, std::size_t bytes) {
      events.push_back({.action = action, .alignment = 64, .block = block, .bytes = bytes});
    };
    add(memory::Trace::Action::allocate, 0, std::size_t{1} << 20);  // the first step
    add(memory::Trace::Action::free, 0, 0);
    for (std::uint64_t next = 1; next < 40 || !live.empty();) {
      if (next < 40 && (live.empty() || random() % 2 == 0)) {
        add(memory::Trace::Action::allocate, next, 64 * (1 + random() % 20));
        live.push_back(next++);
      } else {
        const auto at = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
        add(memory::Trace::Action::free, *at, 0);
        live.erase(at);
      }
    }
    nn::MemoryProfile profile;
    profile.events = events;
    profile.step_ends = {2, events.size()};
    searched += memory::make_step_placement(std::span(events).subspan(2), options).placement.stage !=
                memory::PlacementStage::greedy;
    const std::vector<memory::StepPlacement> plans = nn::plan_steps(profile, options);
    REQUIRE(plans.size() == 2);
    CHECK(plans[0].placement.height == std::size_t{1} << 20);
    CHECK(plans[1].placement.stage == memory::PlacementStage::greedy);
  }
  CHECK(searched > 0);
}
