// A step trains only its own optimizer's leaves: adversaries, an actor and a critic over one trunk, adapters. Compared
// with hand-written loops.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/graph.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/hand_loops.h"
#include "support/refusal.h"

using namespace thimble;
using namespace hand_loops;
using refusal_test::refusal;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// y = x. Counts the forwards that keep something for backward, and the backwards.
struct Counted {
  static constexpr const char* name = "counted";
  struct Saved {
    Tensor x;
  };
  int* kept;
  int* backwards;

  Tensor forward(const Tensor& x, ops::Needs needs, Saved& saved) const {
    if (needs.any()) saved.x = x, ++*kept;
    return clone(x);
  }
  ops::Gradients backward(Saved, Tensor dy, ops::Needs) const {
    ++*backwards;
    return {dy};
  }
};

}  // namespace

TEST_CASE("own leaves: two optimizers that take turns, each with its own loss", "[own_leaves][step]") {
  for (const nn::FusedUpdate fuses : {nn::FusedUpdate::off, nn::FusedUpdate::unsecured}) {
    const auto stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    const Tensor g = leaf({0.3, -0.7}, {2}), d = leaf({1.28, 0.9}, {2});
    constexpr double rate = 0.125;
    optim::Sgd of_g({{"g", g}}, {.rate = rate}), of_d({{"d", d}}, {.rate = rate});
    Values gv = values_of(g), dv = values_of(d);
    nn::StepOptions options;
    options.fuses_optimizer = fuses;
    for (int turn = 0; turn < 6; ++turn) {
      nn::training_step(
          of_g, [&](std::int64_t) { return sum(g * d); }, options);
      descend(gv, dv, rate);
      CHECK_FALSE(d.grad().defined());
      check_close(g, gv);
      check_close(d, dv);
      nn::training_step(
          of_d, [&](std::int64_t) { return sum(d * d + d * g); }, options);
      descend(dv, {2 * dv[0] + gv[0], 2 * dv[1] + gv[1]}, rate);
      check_close(g, gv);
      check_close(d, dv);
      CHECK(stack.ledger->bytes(memory::Category::gradient) == 0);
    }
  }
}

TEST_CASE("own leaves: the first gradient of the second optimizer", "[own_leaves][step]") {
  const Tensor g = leaf({-1.4}, {1}), d = leaf({1.28}, {1});  // the first step must not leave -1.4 on d
  optim::Sgd of_g({{"g", g}}, {.rate = 0}), of_d({{"d", d}}, {.rate = 1});
  nn::training_step(of_g, [&](std::int64_t) { return sum(g * d); });
  nn::training_step(of_d, [&](std::int64_t) { return sum(d * d); });
  check_close(d, {1.28 - 2.56});
}

TEST_CASE("own leaves: an actor and a critic over one trunk", "[own_leaves][step]") {
  // The actor's optimizer also has the trunk; for the critic it is a constant. Also in micro-batches of one row.
  constexpr std::size_t n = 4, in = 3, width = 5, actions = 2;
  constexpr double rate = 0.2;
  for (const std::int64_t parts : {1, 4}) {
    Values trunk = spread(in * width, 1), actor = spread(width * actions, 2), critic = spread(width, 3);
    const Tensor w = leaf(trunk, {3, 5}), a = leaf(actor, {5, 2}), c = leaf(critic, {5, 1});
    const Values xs = spread(n * in, 4), returns = spread(n, 5);
    const Tensor x = from_host(xs, {4, 3}), target = from_host(returns, {4, 1});
    optim::Sgd of_actor({{"trunk", w}, {"actor", a}}, {.rate = rate}), of_critic({{"critic", c}}, {.rate = rate});
    const std::int64_t rows = static_cast<std::int64_t>(n) / parts;
    int kept = 0, backwards = 0;
    const auto features = [&](std::int64_t part) {
      return apply(Counted{&kept, &backwards}, tanh(matmul(slice(x, 0, part * rows, (part + 1) * rows), w)));
    };
    const auto value_of = [&](std::int64_t part) { return matmul(features(part), c); };
    // The actor's loss: mean of policy^2 weighted by the critic's value, which it must not train.
    const auto actor_loss = [&](std::int64_t part) { return mean(square(matmul(features(part), a)) * value_of(part)); };
    const auto critic_loss = [&](std::int64_t part) {
      return mean(square(value_of(part) - slice(target, 0, part * rows, (part + 1) * rows)));
    };
    nn::StepOptions options;
    options.micro_batches = parts;
    options.micro_samples = rows;
    for (int turn = 0; turn < 3; ++turn) {
      // By hand.
      Values h = product(xs, trunk, n, in, width);
      for (double& v : h) v = std::tanh(v);
      const Values policy = product(h, actor, n, width, actions), value = product(h, critic, n, width, 1);
      Values dpolicy(n * actions), dvalue(n, 0);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < actions; ++j) {
          const double p = policy[i * actions + j];
          dpolicy[i * actions + j] = 2 * p * value[i] / static_cast<double>(n * actions);
          dvalue[i] += p * p / static_cast<double>(n * actions);
        }
      }
      const Values dactor = product(transposed(h, n, width), dpolicy, width, n, actions);
      Values dh = product(dpolicy, transposed(actor, width, actions), n, actions, width);
      const Values dh_of_value = product(dvalue, transposed(critic, width, 1), n, 1, width);  // through the critic
      for (std::size_t i = 0; i < dh.size(); ++i) dh[i] = (dh[i] + dh_of_value[i]) * (1 - h[i] * h[i]);
      descend(trunk, product(transposed(xs, n, in), dh, in, n, width), rate);
      descend(actor, dactor, rate);

      nn::training_step(of_actor, actor_loss, options);
      check_close(w, trunk);
      check_close(a, actor);
      check_close(c, critic);
      CHECK(backwards == 2 * parts);  // the trunk's, under actor and critic
      CHECK_FALSE(c.grad().defined());

      h = product(xs, trunk, n, in, width);
      for (double& v : h) v = std::tanh(v);
      Values dy = product(h, critic, n, width, 1);
      for (std::size_t i = 0; i < n; ++i) dy[i] = 2 * (dy[i] - returns[i]) / static_cast<double>(n);
      descend(critic, product(transposed(h, n, width), dy, width, n, 1), rate);
      kept = backwards = 0;
      nn::training_step(of_critic, critic_loss, options);
      check_close(w, trunk);
      check_close(a, actor);
      check_close(c, critic);
      CHECK(kept == 0);  // nothing below the first trained leaf
      CHECK(backwards == 0);
      CHECK_FALSE(w.grad().defined());
    }
  }
}

TEST_CASE("own leaves: leaves of nobody cost what constants cost", "[own_leaves][step]") {
  // A base with an adapter, trained by the adapter's optimizer: the base as leaves, as frozen leaves, and as constants.
  enum class Base { leaves, frozen, constants };
  const auto run = [](Base base, bool has_plan) {
    const auto stack = memory::make_resource(cpu, {.trace = true});
    const ResourceScope scope(stack.top);
    const Tensor x = full({8, 16}, 0.25);
    std::vector<Tensor> weights;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(full({16, 16}, 0.03 * (i + 1), DType::f32, cpu, memory::Category::parameter));
      if (base != Base::constants) weights.back().require_grad();
      if (base == Base::frozen) weights.back().set_requires_grad(false);
    }
    Tensor down = full({2, 16}, 0.1, DType::f32, cpu, memory::Category::parameter);
    Tensor up = full({16, 2}, 0.2, DType::f32, cpu, memory::Category::parameter);
    down.require_grad(), up.require_grad();
    optim::Adam adam({{"down", down}, {"up", up}}, {.rate = 0.01});
    const auto loss = [&](std::int64_t) {
      const Tensor h = tanh(linear(x, weights[0]));
      const Tensor adapted = linear(h, weights[1]) + linear(linear(h, down), up);
      return mean(square(linear(gelu(adapted), weights[2])));
    };
    nn::StepOptions options;
    if (has_plan) {
      Tape tape;
      tape.observe();
      auto plan = std::make_shared<TapePlan>();
      {
        const Recording on(tape);
        loss(0);
        const TapeGraph graph = TapeGraph::of(tape);
        for (const TapeGraph::Node& node : graph.nodes) {
          plan->types.push_back(node.type), plan->fates.push_back(Fate::drop);
        }
      }
      plan->segments = {{0, static_cast<std::uint32_t>(plan->types.size()) - 1, TapePlan::none}};
      options.recording.plan = plan;
    }
    const std::size_t begin = stack.trace->events().size();
    for (int i = 0; i < 3; ++i) nn::training_step(adam, loss, options);
    const std::vector<memory::Trace::Event> all = stack.trace->events();
    std::vector<std::pair<memory::Trace::Action, std::size_t>> events;
    for (std::size_t i = begin; i < all.size(); ++i) events.emplace_back(all[i].action, all[i].bytes);
    CHECK(stack.ledger->bytes(memory::Category::gradient) == 0);
    return std::pair(events, values_of(up));
  };
  for (const bool has_plan : {false, true}) {
    INFO("plan " << has_plan);
    const auto constants = run(Base::constants, has_plan);
    CHECK(run(Base::leaves, has_plan) == constants);
    CHECK(run(Base::frozen, has_plan) == constants);
  }
}

TEST_CASE("own leaves: a loss that depends on none of them, and a parameter that no loss depends on",
          "[own_leaves][step]") {
  const Tensor w = leaf({2}, {1}), unused = leaf({3}, {1}), other = leaf({4}, {1});
  optim::Sgd sgd({{"w", w}, {"unused", unused}}, {.rate = 1});
  CHECK(contains(
      refusal<AutogradError>([&] { nn::training_step(sgd, [&](std::int64_t) { return sum(square(other)); }); }),
      "depends on none of the leaves that this step trains"));
  CHECK(contains(refusal<AutogradError>([&] { nn::training_step(sgd, [&](std::int64_t) { return other; }); }),
                 "depends on none of the leaves that this step trains"));
  CHECK(sgd.step_count() == 0);
  CHECK_FALSE(other.grad().defined());
  nn::training_step(sgd, [&](std::int64_t) { return sum(square(w) * other); });
  check_close(w, {2 - 16});
  check_close(unused, {3});
  check_close(other, {4});
  w.set_requires_grad(false);
  CHECK(contains(refusal<AutogradError>([&] { nn::training_step(sgd, [&](std::int64_t) { return sum(square(w)); }); }),
                 "depends on none of the leaves that this step trains"));
  // A bare tape trains all leaves, or the leaves of a given set.
  Tape tape;
  const auto record = [&] {
    const Recording on(tape);
    return sum(unused * other);
  };
  tape.backward(record());
  check_close(unused.grad(), {4});
  check_close(other.grad(), {3});
  other.grad() = unused.grad() = Tensor();
  const LeafSet of_one({other.leaf().get()});
  tape.train(&of_one);
  tape.backward(record());
  CHECK_FALSE(unused.grad().defined());
  check_close(other.grad(), {3});
}

TEST_CASE("optimizer: a parameter that is listed twice is refused by name", "[optim]") {
  struct Tied final : nn::Module {
    nn::Linear& a = child<nn::Linear>("a", 4, 4);
    nn::Linear& b = child<nn::Linear>("b", 4, 4);
  } net;
  std::vector<optim::Named> twice = net.trainable();
  twice.push_back({"again", net.b.weight});
  const std::string text = ": 'b.weight' and 'again' are one parameter; expected each once";
  CHECK(contains(refusal<ValueError>([&] { optim::Sgd(twice, {}); }), "optimizer" + text));
  CHECK(contains(refusal<ValueError>([&] { optim::Adam(twice, {}); }), "optimizer" + text));
  CHECK(contains(refusal<ValueError>([&] { optim::clip_grad_norm(twice, 1); }), "clip_grad_norm" + text));
  CHECK(contains(refusal<ValueError>([&] { optim::GradScaler().judge(twice); }), "grad_scaler" + text));
  net.b.weight = net.a.weight;  // tied: the module lists it once
  CHECK(net.trainable().size() == 3);
  CHECK_NOTHROW(optim::Sgd(net.trainable(), {}));
}
