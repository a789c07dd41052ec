// Captured training steps (nn/step/captured_step.h) match uncaptured steps bit for bit.

#include <memory>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/captured_step.h>

#include "support/catch.h"
#include "support/model_runs.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace captured_step_test {

models::Setup text_setup() {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 1, setup.sizes.heads = 2, setup.sizes.width = 16, setup.sizes.sequence = 12;
  setup.sizes.vocabulary = 40, setup.sizes.dropout = 0.1;
  setup.batch = 2;
  return setup;
}

models::Setup image_setup() {
  models::Setup setup;
  setup.model = "resnet18";
  setup.sizes.image = 8, setup.sizes.width = 4, setup.sizes.classes = 5;
  setup.batch = 2;
  return setup;
}

/// A net in its own placed arena.
class Net {
 public:
  Net(const models::Setup& setup, memory::Device device, optim::GradScaler* scaler = nullptr)
      : stack_(memory::make_resource(device, {.plans = plans(setup, device, scaler)})),
        scope_(stack_.top),
        generator_(setup.seed),
        random_(generator_),
        setup_(setup),
        model_(models::make_model(setup.model, setup.sizes, models::tensor_options(setup, device))),
        optimizer_(models::make_optimizer(setup, *model_)),
        batch_(model_->empty_batch(setup.batch, device)) {
    options_ = models::step_options(setup, model_->is_text(), device);
    options_.scaler = scaler;
  }

  static std::vector<memory::StepPlacement> plans(const models::Setup& setup, memory::Device device,
                                                  optim::GradScaler* scaler) {
    return nn::plan_steps(device, [&](memory::Device on) {
      std::unique_ptr<nn::TrainingRun> run = models::zero_batch_run(setup)(on);
      run->options().scaler = scaler;
      return run;
    });
  }

  /// Runs step `index` with its own batch and learning rate; returns the loss.
  float step(int index, nn::CapturedStep* recorded) {
    {
      const ResourceScope outside(default_resource(cuda()));
      const models::Batch next =
          thimble::testing::make_batch(*model_, setup_.batch, static_cast<std::uint64_t>(3 + index));
      copy_into(batch_.input, to_device(to_dtype(next.input, batch_.input.dtype()), cuda()));
      copy_into(batch_.target, to_device(next.target, cuda()));
    }
    optimizer_->set_rate(0.01 / (index + 1));
    if (recorded != nullptr) return value_of(recorded->run());
    const memory::PlacedArena::Step placed(*stack_.placed);
    return value_of(nn::training_step(*optimizer_, loss_of(), options_));
  }

  static float value_of(const Tensor& loss) {
    const ResourceScope outside(default_resource(cuda()));
    return static_cast<float>(item(loss));
  }

  std::function<Tensor(std::int64_t)> loss_of() {
    return [this](std::int64_t i) {
      ++calls;
      return model_->loss(models::micro_batch(batch_, i, options_.micro_batches));
    };
  }

  /// Parameters, buffers and optimizer state.
  std::vector<std::vector<double>> state() const {
    const ResourceScope outside(default_resource(cuda()));
    std::vector<std::vector<double>> all;
    for (const auto& p : model_->parameters()) all.push_back(to_host<double>(p.tensor.detach()));
    for (const auto& b : model_->buffers()) all.push_back(to_host<double>(b.tensor));
    for (const optim::Named& s : optimizer_->state()) all.push_back(to_host<double>(s.tensor));
    return all;
  }

  memory::Stack stack_;
  ResourceScope scope_;
  RandomGenerator generator_;
  GeneratorScope random_;
  models::Setup setup_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  models::Batch batch_;
  nn::StepOptions options_;
  int calls = 0;
};

constexpr int steps = 6;

struct Result {
  std::vector<float> losses;
  std::vector<std::vector<double>> state;
  std::uint64_t random_step = 0;
  std::int64_t updates = 0;
  friend bool operator==(const Result&, const Result&) = default;
};

Result train(const models::Setup& setup, bool is_recorded) {
  Net net(setup, cuda());
  std::unique_ptr<nn::CapturedStep> recorded;
  if (is_recorded) {
    recorded = std::make_unique<nn::CapturedStep>(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_);
  }
  Result result;
  for (int i = 0; i < steps; ++i) {
    result.losses.push_back(net.step(i, recorded.get()));
    if (!recorded) continue;
    CHECK(recorded->is_captured() == (i >= 2));
    CHECK((recorded->launches() > 0) == (i >= 2));
  }
  CHECK(net.stack_.placed->statistics().deviations == 0);
  CHECK(net.stack_.placed->statistics().dynamic_steps == 0);
  if (recorded) {
    CHECK(net.calls == 3 * static_cast<int>(net.options_.micro_batches));
    CHECK(recorded->step_bytes() > 0);
  }
  result.state = net.state();
  result.random_step = net.generator_.step();
  result.updates = net.optimizer_->step_count();
  return result;
}

}  // namespace captured_step_test

using namespace captured_step_test;

TEST_CASE("cuda graph: recorded training steps have the bits of steps that are not", "[cuda][graph]") {
  if (!has_cuda()) return;
  struct Case {
    const char* optimizer;
    models::Setup setup;
    std::function<void(models::Setup&)> change = [](models::Setup&) {};
  };
  const std::vector<Case> cases = {
      {"adamw", text_setup()},  // with clipping and dropout
      {"adamw8", text_setup()},
      {"adafactor", text_setup(), [](models::Setup& s) { s.micro_batches = 2; }},
      {"sgd", text_setup(), [](models::Setup& s) { s.fuses_optimizer = true, s.optimizer.clip_norm = 0; }},
      {"momentum", image_setup()},  // updates the statistics of batch norm
      {"momentum8", image_setup()},
      {"adamw", text_setup(), [](models::Setup& s) { models::set_precision(s, "bf16-stochastic"); }},
      {"adamw8", text_setup(),  // matrices of 4096 elements, so that the state is in 8 bits
       [](models::Setup& s) { models::set_precision(s, "bf16-stochastic"), s.sizes.width = 32; }},
      {"adafactor", text_setup(), [](models::Setup& s) { models::set_precision(s, "bf16-stochastic"); }},
  };
  for (const Case& c : cases) {
    models::Setup setup = c.setup;
    setup.optimizer.name = c.optimizer;
    c.change(setup);
    INFO(setup.model << " " << c.optimizer << " " << setup.precision.policy);
    const Result eager = train(setup, false), recorded = train(setup, true);
    CHECK(recorded.losses == eager.losses);
    CHECK((recorded.state == eager.state));
    CHECK(recorded.random_step == eager.random_step);
    CHECK(recorded.updates == eager.updates);
    CHECK(recorded.losses[4] != recorded.losses[5]);
  }
}

TEST_CASE("cuda graph: a captured step keeps its addresses, and gives them back", "[cuda][graph]") {
  if (!has_cuda()) return;
  Net net(text_setup(), cuda());
  const std::shared_ptr<memory::Arena> arena = net.stack_.arena;
  Tensor below = Tensor::empty({100'000}, DType::f32, cuda());
  const Tensor above = Tensor::empty({1000}, DType::f32, cuda());
  {
    nn::CapturedStep recorded(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_);
    for (int i = 0; i < 3; ++i) net.step(i, &recorded);
    REQUIRE(recorded.is_captured());
    CHECK(net.stack_.placed->release_region() == 0);
    below = Tensor();
    CHECK(arena->compact() == 0);
    // Between steps, memory works as usual.
    const std::vector<float> values{1, 2, 3};
    CHECK(to_host<float>(from_host(values, {3}, cuda())) == values);
    const std::uint64_t before = arena->statistics().allocation_count;
    recorded.run();
    CHECK(arena->statistics().allocation_count == before);  // a replay allocates nothing
    RandomGenerator other(5);
    const GeneratorScope scope(other);
    CHECK_THROWS_AS(recorded.run(), PlanError);
  }
  CHECK(arena->compact() > 0);
  CHECK(net.stack_.placed->release_region() > 0);
}

TEST_CASE("cuda graph: a step that cannot be recorded is refused, and nothing has changed", "[cuda][graph]") {
  if (!has_cuda()) return;
  Net net(text_setup(), cuda());
  bool asks = false;
  nn::CapturedStep recorded(
      *net.stack_.placed, *net.optimizer_,
      [&](std::int64_t) {
        const Tensor loss = net.model_->loss(net.batch_);
        if (asks) item(loss);  // a read on the host ends the capture
        return loss;
      },
      net.options_);
  net.step(0, &recorded), net.step(1, &recorded);
  const auto before = net.state();
  asks = true;
  CHECK_THROWS_AS(net.step(2, &recorded), DeviceError);
  CHECK_FALSE(recorded.is_captured());
  CHECK(net.optimizer_->step_count() == 2);
  CHECK(net.generator_.step() == 2);
  CHECK((net.state() == before));
  asks = false;
  net.step(2, &recorded);
  CHECK(recorded.is_captured());
  CHECK_FALSE((net.state() == before));
}

TEST_CASE("cuda graph: what asks the host in every step is refused at once", "[cuda][graph]") {
  const auto refused = [](const std::function<void(Net&)>& change) {
    Net net(text_setup(), dry(cuda()));
    change(net);
    CHECK_THROWS_AS(nn::CapturedStep(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_), PlanError);
  };
  TapeGraph watched;
  refused([&](Net& net) { net.options_.recording.graph = &watched; });
  TapeTimes times;
  refused([&](Net& net) { net.options_.recording.times = &times; });
  Net net(text_setup(), dry(cuda()));
  {
    const ResourceScope elsewhere(default_resource(dry(cuda())));
    CHECK_THROWS_AS(nn::CapturedStep(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_), PlanError);
  }
  Net here(text_setup(), dry(cpu));
  CHECK_THROWS_AS(nn::CapturedStep(*here.stack_.placed, *here.optimizer_, here.loss_of(), here.options_), DeviceError);
}

TEST_CASE("cuda graph: a loss scale that moves, and skipped steps, have the bits of steps that are not recorded",
          "[cuda][graph][scaler]") {
  if (!has_cuda()) return;
  // The scale grows in every good step and passes the largest f32 after two; the seed of backward is then infinite.
  optim::GradScalerOptions moving;
  moving.scale = 0x1p110, moving.growth = 0x1p10, moving.interval = 1, moving.backoff = 0x1p-20, moving.most = 0x1p300;
  struct Case {
    const char* what;
    models::Setup setup;
    optim::GradScalerOptions scaler;
  };
  std::vector<Case> cases = {{"skipped when recorded, and later", text_setup(), moving},
                             {"skipped at first", text_setup(), moving},
                             {"batch norm, not clipped", image_setup(), moving},
                             {"micro-batches", text_setup(), moving},
                             {"a static scale, clipped", text_setup(), {.scale = 1024, .is_dynamic = false}}};
  cases[1].scaler.scale = 0x1p130;
  cases[3].setup.micro_batches = 2;
  for (const Case& c : cases) {
    INFO(c.what);
    const auto run = [&](bool is_recorded, std::vector<optim::GradScalerState>& course) {
      optim::GradScaler scaler(c.scaler);
      Net net(c.setup, cuda(), &scaler);
      std::unique_ptr<nn::CapturedStep> recorded;
      if (is_recorded) {
        recorded = std::make_unique<nn::CapturedStep>(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_);
      }
      Result result;
      for (int i = 0; i < 9; ++i) {
        result.losses.push_back(net.step(i, recorded.get()));
        course.push_back(scaler.state());
      }
      if (recorded) CHECK(net.calls == 3 * static_cast<int>(net.options_.micro_batches));
      result.state = net.state();
      result.random_step = net.generator_.step();
      result.updates = net.optimizer_->step_count();
      return result;
    };
    std::vector<optim::GradScalerState> eager_course, course;
    const Result eager = run(false, eager_course), recorded = run(true, course);
    CHECK(recorded.losses == eager.losses);
    CHECK((recorded.state == eager.state));
    CHECK(recorded.random_step == 9);
    CHECK(recorded.updates == eager.updates);
    CHECK((course == eager_course));
    const std::int64_t skipped = course.back().skipped_steps;
    CHECK(recorded.updates == 9 - skipped);
    // The replays include both good and skipped steps.
    const std::int64_t skipped_replays = skipped - course[1].skipped_steps;
    CHECK((c.scaler.is_dynamic ? skipped_replays > 0 && skipped_replays < 7 : skipped == 0));
  }
}

TEST_CASE("cuda graph: a static loss scale is recorded, and a dry step allocates what a real one does",
          "[cuda][graph]") {
  if (!has_cuda()) return;
  const auto run = [](memory::Device device, bool is_recorded, std::vector<std::vector<double>>* state) {
    models::Setup setup = text_setup();
    setup.optimizer.clip_norm = 0;
    optim::GradScaler scaler({.scale = 1024, .is_dynamic = false});
    Net net(setup, device, &scaler);
    std::unique_ptr<nn::CapturedStep> recorded;
    if (is_recorded) {
      recorded = std::make_unique<nn::CapturedStep>(*net.stack_.placed, *net.optimizer_, net.loss_of(), net.options_);
    }
    for (int i = 0; i < 5; ++i) {
      if (device.is_dry) {
        recorded->run();
      } else {
        net.step(i, recorded.get());
      }
    }
    CHECK(net.optimizer_->step_count() == 5);
    if (state != nullptr) *state = net.state();
    return net.stack_.arena->statistics();
  };
  std::vector<std::vector<double>> eager, recorded;
  run(cuda(), false, &eager);
  const memory::Arena::Statistics real = run(cuda(), true, &recorded);
  CHECK((eager == recorded));
  const memory::Arena::Statistics predicted = run(dry(cuda()), true, nullptr);
  CHECK(predicted.peak_height_bytes == real.peak_height_bytes);
  CHECK(predicted.peak_committed_bytes == real.peak_committed_bytes);
  CHECK(predicted.peak_requested_bytes == real.peak_requested_bytes);
  CHECK(predicted.height_bytes == real.height_bytes);
}
