// Frozen leaves are constants: freezing and thawing during training, by name, and under a plan. Compared with
// hand-written loops.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/profile.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/hand_loops.h"
#include "support/random_plans.h"

using namespace thimble;
using namespace hand_loops;

TEST_CASE("freezing: and thawing in the middle of training", "[freezing][step]") {
  constexpr double rate = 0.3, momentum = 0.5;
  TwoLayers hand{spread(12, 1), spread(8, 2)};
  const Values xs = spread(15, 3), targets = spread(10, 4);
  const Tensor x = from_host(xs, {5, 3}), target = from_host(targets, {5, 2});
  const Tensor a = leaf(hand.a, {3, 4}), b = leaf(hand.b, {4, 2});
  optim::Sgd sgd({{"a", a}, {"b", b}}, {.rate = rate, .momentum = momentum});
  Values of_a(12, 0), of_b(8, 0);  // velocities
  const auto update = [&](Values& w, Values& velocity, const Values& gradient) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      velocity[i] = momentum * velocity[i] + gradient[i];
      w[i] -= rate * velocity[i];
    }
  };
  const auto loss = [&](std::int64_t) { return mean(square(matmul(tanh(matmul(x, a)), b) - target)); };
  for (int step = 0; step < 12; ++step) {
    INFO("step " << step);
    const bool is_a_frozen = step / 3 == 1, is_b_frozen = step / 3 == 2;
    a.set_requires_grad(!is_a_frozen);
    b.set_requires_grad(!is_b_frozen);
    CHECK(a.requires_grad() == !is_a_frozen);
    const auto [da, db] = hand.gradients(xs, targets);
    if (!is_a_frozen) update(hand.a, of_a, da);
    if (!is_b_frozen) update(hand.b, of_b, db);
    nn::training_step(sgd, loss);
    check_close(a, hand.a);
    check_close(b, hand.b);
  }
}

TEST_CASE("freezing: what is frozen accumulates nothing, anywhere", "[freezing]") {
  const Tensor w = leaf({2, 3}, {2}), v = leaf({5, 7}, {2});
  Tape tape;
  const auto record = [&](const std::function<void()>& between) {
    const Recording on(tape);
    const Tensor first = w * v;
    between();
    return sum(first + square(w));
  };
  tape.backward(record([] {}));
  CHECK(values_of(w.grad()) == Values{9, 13});
  w.set_requires_grad(false);
  CHECK_FALSE(w.grad().defined());  // else an update would use it
  v.grad() = Tensor();
  tape.backward(record([] {}));
  CHECK_FALSE(w.grad().defined());
  CHECK(values_of(v.grad()) == Values{2, 3});
  // Thawed in mid-recording, it gets a gradient from there on; frozen in mid-recording, not even for earlier uses.
  v.grad() = Tensor();
  tape.backward(record([&] { w.set_requires_grad(true); }));
  CHECK(values_of(w.grad()) == Values{4, 6});
  tape.backward(record([&] { w.set_requires_grad(false); }));
  CHECK_FALSE(w.grad().defined());
  CHECK(values_of(v.grad()) == Values{4, 6});
  CHECK_THROWS_AS(w.detach().set_requires_grad(false), AutogradError);
}

TEST_CASE("freezing: modules are frozen by name", "[freezing]") {
  RandomGenerator generator(1);
  const GeneratorScope draws(generator);
  struct Net final : nn::Module {
    nn::Sequential& body = child<nn::Sequential>("body");
    nn::Linear& head = child<nn::Linear>("head", 3, 2);
    Net() { body.add<nn::Linear>(4, 3), body.add<nn::Linear>(3, 3); }
  } net;
  const auto names = [&] {
    std::vector<std::string> list;
    for (const nn::Named& p : net.trainable()) list.push_back(p.name);
    return list;
  };
  using Names = std::vector<std::string>;
  const Names all{"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight", "head.bias"};
  CHECK(names() == all);
  net.freeze("body");
  CHECK(names() == Names{"head.weight", "head.bias"});
  CHECK(net.parameters().size() == all.size());
  net.unfreeze("body.1");
  net.freeze("head.bias");
  CHECK(names() == Names{"body.1.weight", "body.1.bias", "head.weight"});
  net.freeze();
  CHECK_THROWS_AS(names(), ValueError);  // nothing is left to train
  net.unfreeze();
  CHECK(names() == all);
  net.freeze("body.*.weight");
  CHECK(names() == Names{"body.0.bias", "body.1.bias", "head.weight", "head.bias"});
  net.unfreeze("*");
  CHECK(names() == all);
  net.freeze("*.1");
  CHECK(names() == Names{"body.0.weight", "body.0.bias", "head.weight", "head.bias"});
  net.unfreeze("b*y");
  CHECK(names() == all);
  CHECK_THROWS_AS(net.freeze("*.2"), ValueError);
  CHECK_THROWS_AS(net.freeze("bod"), ValueError);
  CHECK_THROWS_AS(net.freeze("head.weigh"), ValueError);
}

TEST_CASE("freezing: backward ends at the first layer that is trained, and what is trained gets the same bits",
          "[freezing]") {
  static constexpr std::int64_t rows = 6, width = 8, layers = 4;
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(2);
  const GeneratorScope draws(generator);
  struct Net final : nn::Module {
    std::vector<nn::Linear*> layers_;
    Net() {
      for (std::int64_t i = 0; i < layers; ++i) {
        layers_.push_back(&child<nn::Linear>("layer" + std::to_string(i), width, width));
      }
    }
    Tensor loss(const Tensor& x) {
      Tensor h = x;
      for (nn::Linear* const layer : layers_) h = tanh((*layer)(h));
      return sum(h);
    }
  } net;
  const Tensor x = randn({rows, width});
  struct Pass {
    std::size_t nodes, kept_bytes;
    std::vector<std::vector<float>> gradients;  // each layer's weight and bias; empty where frozen
  };
  const auto pass = [&] {
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = net.loss(x);
    }
    Pass result{tape.node_count(), stack.ledger->bytes(memory::Category::activation), {}};
    CHECK(tape.kept_bytes() == result.kept_bytes);
    tape.backward(loss);
    for (const nn::NamedTensor& p : net.parameters()) {
      result.gradients.push_back(p.tensor.grad().defined() ? to_host<float>(p.tensor.grad()) : std::vector<float>());
      Tensor(p.tensor).grad() = Tensor();
    }
    return result;
  };
  const Pass all = pass();
  constexpr std::size_t one = rows * width * sizeof(float);  // tanh's result, which tanh keeps and the next layer reads
  CHECK(all.nodes == 2 * layers + 1);
  CHECK(all.kept_bytes == (layers + 1) * one);  // plus the first layer's input
  for (std::size_t first = 1; first < layers; ++first) {
    INFO("trained from layer " << first);
    net.freeze("layer" + std::to_string(first - 1));
    const Pass some = pass();
    CHECK(some.nodes == 2 * (layers - first) + 1);         // layers below `first` record nothing
    CHECK(some.kept_bytes == (layers - first + 1) * one);  // plus the input of layer `first`
    for (std::size_t i = 0; i < all.gradients.size(); ++i) {
      CHECK(some.gradients[i] == (i / 2 < first ? std::vector<float>() : all.gradients[i]));
    }
  }
  // Frozen above a trained layer: the gradient passes through, and the layer keeps no input.
  net.unfreeze();
  net.freeze("layer2");
  const Pass through = pass();
  CHECK(through.kept_bytes == (layers + 1) * one);  // tanh keeps that input anyway
  for (std::size_t i = 0; i < all.gradients.size(); ++i) {
    CHECK(through.gradients[i] == (i / 2 == 2 ? std::vector<float>() : all.gradients[i]));
  }
  const optim::Sgd sgd(net.trainable(), {.rate = 1, .momentum = 0.9});
  CHECK(sgd.state_bytes() == (layers - 1) * (width * width + width) * sizeof(float));  // none for frozen parameters
  CHECK(stack.ledger->bytes(memory::Category::optimizer) == sgd.state_bytes());
}

namespace {

/// Trains two layers, placed or not; `frozen` marks the steps in which the first is frozen.
class Freezing final : public nn::TrainingRun {
 public:
  Freezing(memory::Device device, std::vector<Values>& after, std::vector<bool> frozen)
      : after_(after), frozen_(std::move(frozen)) {
    const TwoLayers hand{spread(12, 1), spread(8, 2)};
    const auto on_device = [&](const Values& values, const Shape& shape) {
      return from_host(values, shape, device, memory::Category::parameter);
    };
    a_ = on_device(hand.a, {3, 4}), b_ = on_device(hand.b, {4, 2});
    a_.require_grad(), b_.require_grad();
    x_ = on_device(spread(15, 3), {5, 3}), target_ = on_device(spread(10, 4), {5, 2});
    sgd_ = std::make_unique<optim::Sgd>(std::vector<optim::Named>{{"a", a_}, {"b", b_}}, optim::SgdOptions{.rate = 1});
  }
  nn::StepOptions& options() override { return options_; }
  void step() override {
    a_.set_requires_grad(step_ >= frozen_.size() || !frozen_[step_]);
    ++step_;
    nn::training_step(
        *sgd_, [this](std::int64_t) { return mean(square(matmul(tanh(matmul(x_, a_)), b_) - target_)); }, options_);
    if (a_.device().is_dry) return;
    const memory::Pin a(a_), b(b_);  // reads in place, allocates nothing
    Values values(a.as<double>(), a.as<double>() + a_.elements());
    values.insert(values.end(), b.as<double>(), b.as<double>() + b_.elements());
    after_.push_back(std::move(values));
  }
  std::int64_t parameters() const override { return a_.elements() + b_.elements(); }

 private:
  std::vector<Values>& after_;
  std::vector<bool> frozen_;
  std::size_t step_ = 0;
  Tensor a_, b_, x_, target_;
  std::unique_ptr<optim::Sgd> sgd_;
  nn::StepOptions options_;
};

}  // namespace

TEST_CASE("freezing: steps whose leaves are frozen leave a plan, are counted, and have the same bits",
          "[freezing][placed]") {
  constexpr std::size_t steps = 6;
  const std::vector<bool> frozen{false, true, true, false, true, false};
  std::vector<Values> after;
  std::shared_ptr<const TapePlan> plan;
  const auto make = [&](const std::vector<bool>& of_steps) {
    return [&after, &plan, of_steps](memory::Device device) {
      auto run = std::make_unique<Freezing>(device, after, of_steps);
      run->options().recording.plan = plan;
      return run;
    };
  };
  nn::profile_training(cpu, make(frozen), steps);
  const std::vector<Values> expected = std::exchange(after, {});
  REQUIRE(expected.size() == steps);
  CHECK(expected[1] != expected[2]);

  random_plans::Random random(5);
  const TapeGraph graph = nn::record_step(cpu, make({}));
  for (int trial = 0; trial < 20; ++trial) {
    plan = trial == 0 ? nullptr : std::make_shared<TapePlan>(random_plans::random_plan(graph, random));
    for (const bool is_planned_frozen : {false, true}) {
      INFO("trial " << trial << ", planned with the layer " << (is_planned_frozen ? "frozen" : "trained"));
      const auto plans = nn::plan_steps(cpu, make(std::vector<bool>(2, is_planned_frozen)));
      const nn::MemoryProfile profile = nn::profile_training(cpu, make(frozen), steps, false, plans);
      CHECK(std::exchange(after, {}) == expected);
      CHECK(profile.placed.deviations == 3);  // half of the steps deviate from their plan
    }
  }
}
