// Gradients that wait in a tier for their parameter's update: equal bits, and the bytes that a dry run predicts.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/offload_gradients.h>

#include "support/catch.h"
#include "support/offload_data.h"
#include "support/store_run.h"
#include "support/store_tier.h"

using namespace thimble;
using store_test::MemoryTier;

namespace {

/// Three products in a chain, a parameter that nothing reads, and one without elements.
struct Net {
  std::vector<optim::Named> parameters;
  std::unique_ptr<optim::Adam> optimizer;
  Tensor input;  // (15, 20)
  Net() {
    RandomGenerator generator(3);
    const GeneratorScope random(generator);
    for (const Shape& shape : {Shape{20, 30}, Shape{30, 10}, Shape{10, 25}, Shape{4}, Shape{0}}) {
      Tensor t = randn(shape);
      if (t.storage()) t.storage()->set_category(memory::Category::parameter);
      parameters.push_back({"p" + std::to_string(parameters.size()), t.require_grad()});
    }
    input = randn({15, 20});
    optimizer = std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.rate = 0.1});
  }
  Tensor loss() const {
    Tensor hidden = input;
    for (int i = 0; i < 3; ++i) hidden = relu(matmul(hidden, parameters[static_cast<std::size_t>(i)].tensor));
    return add(mean(square(hidden)), sum(parameters[4].tensor));
  }
  void step(const nn::StepOptions& options) {
    nn::training_step(
        *optimizer, [&](std::int64_t) { return loss(); }, options);
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> list;
    for (const optim::Named& p : parameters) list.push_back(to_host<float>(p.tensor));
    for (const optim::Named& s : optimizer->state()) list.push_back(to_host<float>(s.tensor));
    return list;
  }
  bool has_gradient() const {
    for (const optim::Named& p : parameters) {
      if (p.tensor.grad().defined()) return true;
    }
    return false;
  }
};

constexpr std::size_t largest_two_bytes = (20 * 30 + 30 * 10) * 4, all_bytes = (20 * 30 + 30 * 10 + 10 * 25) * 4;

}  // namespace

TEST_CASE("gradient store: the same bits with fewer gradients at a time", "[store]") {
  for (const double clip_norm : {0.0, 1e-3, 1e9}) {
    INFO("clip " << clip_norm);
    nn::StepOptions options{.clip_norm = clip_norm};
    const memory::Stack plain_stack = memory::make_resource(cpu), stack = memory::make_resource(cpu);
    const auto tier = std::make_shared<MemoryTier>();
    std::vector<std::vector<float>> expected;
    {
      const ResourceScope scope(plain_stack.top);
      Net net;
      for (int i = 0; i < 3; ++i) net.step(options);
      expected = net.values();
    }
    options.gradient_tier = tier;
    const ResourceScope scope(stack.top);
    Net net;
    for (int i = 0; i < 3; ++i) net.step(options);
    CHECK(net.values() == expected);
    CHECK_FALSE(net.has_gradient());
    CHECK(tier->statistics().writes == 9);
    CHECK(tier->statistics().reads == 6);  // the gradient written last is still in memory for its update, the first one
    CHECK(tier->statistics().bytes_written == 3 * all_bytes);
    CHECK(tier->statistics().live_bytes == 0);
    CHECK(plain_stack.ledger->max_allocated(memory::Category::gradient) >= all_bytes);
    CHECK(stack.ledger->max_allocated(memory::Category::gradient) <= largest_two_bytes);
  }
}

TEST_CASE("gradient store: a failing tier throws with a type, and says what was updated", "[store]") {
  const nn::StepOptions plain{.clip_norm = 0.5};
  const auto counting = std::make_shared<MemoryTier>();
  {
    nn::StepOptions options = plain;
    options.gradient_tier = counting;
    Net().step(options);
  }
  Net expected;
  const auto untouched = expected.values();
  expected.step(plain);
  std::size_t clean = 0, partial = 0;
  for (std::uint64_t k = 1; k <= counting->calls(); ++k) {
    INFO("call " << k << " of " << counting->calls());
    nn::StepOptions options = plain;
    options.gradient_tier = std::make_shared<MemoryTier>(cpu, k);
    Net net;
    try {
      net.step(options);
      FAIL("no error");
    } catch (const nn::PartialUpdateError& error) {
      CHECK(error.updated() > 0);
      CHECK(error.updated() < 3);
      ++partial;
    } catch (const FileError&) {
      CHECK(net.values() == untouched);
      CHECK(net.optimizer->step_count() == 0);
      CHECK_FALSE(net.has_gradient());
      net.step(options);
      CHECK(net.values() == expected.values());
      ++clean;
    }
    CHECK(options.gradient_tier->statistics().live_bytes == 0);
  }
  CHECK(clean == 6);  // the last one reads the second gradient, which starts before the first update
  CHECK(partial > 0);
}

TEST_CASE("gradient store: what does not go together is refused", "[store]") {
  Net net;
  const auto before = net.values();
  nn::StepOptions options;
  options.gradient_tier = std::make_shared<MemoryTier>();
  nn::StepOptions fused = options, parts = options;
  fused.fuses_optimizer = nn::FusedUpdate::unsecured;
  parts.micro_batches = 2;
  parts.micro_samples = 1;
  CHECK_THROWS_AS(net.step(fused), PlanError);
  CHECK_THROWS_AS(net.step(parts), PlanError);
  net.parameters[0].tensor.grad() = zeros({20, 30});
  CHECK_THROWS_AS(net.step(options), PlanError);
  net.parameters[0].tensor.grad() = Tensor();
  nn::StepOptions elsewhere = options;
  elsewhere.gradient_tier = std::make_shared<MemoryTier>(dry(cpu));
  CHECK_THROWS_AS(net.step(elsewhere), DeviceError);
  CHECK(net.values() == before);
  std::vector<optim::Named> twice = net.parameters;
  twice.push_back(twice.front());
  CHECK_THROWS_AS(optim::OffloadedGradients(twice, options.gradient_tier, 0), ValueError);
  CHECK_THROWS_AS(optim::OffloadedGradients(net.parameters, nullptr, 0), ValueError);
  CHECK_THROWS_AS(optim::OffloadedGradients(net.parameters, options.gradient_tier, -1), ValueError);
}

TEST_CASE("gradient store: a run needs what its dry run says, and less than with gradients here", "[store]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 4, setup.sizes.heads = 4, setup.sizes.width = 256, setup.sizes.sequence = 16;
  setup.optimizer.name = "sgd";
  setup.batch = 1;
  const std::size_t here = nn::profile_training(dry(cpu), models::zero_batch_run(setup)).peak_bytes;
  setup.offload.gradients = true;
  store_run_test::check(setup, folder, here);
}

// ---- A leaf's gradient shares its bytes with no other leaf and with no tensor of the caller.

namespace {

Tensor leaf(double value) {
  Tensor t = full({2, 3}, value);
  t.require_grad();
  return t;
}

using Build = std::function<Tensor(const Tensor& a, const Tensor& b)>;

// Runs backward from a seed of threes, then overwrites a's gradient.
void check_apart(const char* what, const Build& build, double expected_a, double expected_b) {
  INFO(what);
  const Tensor a = leaf(1), b = leaf(2);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = build(a, b);
  }
  const Tensor seed = full(y.shape(), 3);
  tape.backward(y, seed);
  const auto all = [](const Tensor& t, double value) {
    for (const double v : to_host<double>(t)) CHECK(v == value);
  };
  all(a.grad(), expected_a);
  all(b.grad(), expected_b);
  CHECK(a.grad().storage() != b.grad().storage());
  CHECK(a.grad().storage() != seed.storage());
  CHECK(b.grad().storage() != seed.storage());
  fill(a.grad(), 100);
  all(b.grad(), expected_b);
  all(seed, 3);
}

}  // namespace

TEST_CASE("leaf gradient: two leaves of one sum have one each", "[autograd]") {
  check_apart(
      "add", [](const Tensor& a, const Tensor& b) { return add(a, b); }, 3, 3);
  check_apart(
      "sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); }, 3, -3);
  check_apart(
      "views",
      [](const Tensor& a, const Tensor& b) {
        return add(reshape(a, {6}), reshape(reshape(b, {3, 2}), {6}));
      },
      3, 3);
  check_apart(
      "twice", [](const Tensor& a, const Tensor& b) { return add(add(a, b), add(b, a)); }, 6, 6);
  check_apart(
      "in a segment",
      [](const Tensor& a, const Tensor& b) { return checkpoint([&](const Tensor& t) { return add(t, b); }, a); }, 3, 3);
}

TEST_CASE("leaf gradient: the seed of a leaf's own backward stays the caller's", "[autograd]") {
  const Tensor a = leaf(1), seed = full({2, 3}, 3);
  Tape tape;
  tape.backward(a, seed);
  CHECK(a.grad().storage() != seed.storage());
  CHECK_THROWS_AS(tape.backward(a, full({6}, 3)), ShapeError);
  tape.backward(a, seed);
  for (const double v : to_host<double>(a.grad())) CHECK(v == 6);
  for (const double v : to_host<double>(seed)) CHECK(v == 3);
}

TEST_CASE("leaf gradient: the hook hears of every leaf once, with its whole gradient", "[autograd]") {
  const auto check = [](const char* what, const Build& build, const std::vector<double>& gradients) {
    INFO(what);
    const Tensor a = leaf(1), b = leaf(2);
    std::vector<double> heard;
    const auto look = [&](const std::shared_ptr<tape::Leaf>& of) {
      CHECK((of == a.leaf() || of == b.leaf()));
      REQUIRE(of->grad.defined());
      heard.push_back(to_host<double>(of->grad)[5]);
    };
    const LeafHook hook = look;
    Tape tape;
    Tensor y;
    {
      const Recording on(tape);
      y = build(a, b);
    }
    tape.backward(y, full(y.shape(), 3), &hook);
    std::sort(heard.begin(), heard.end());
    CHECK(heard == gradients);
  };
  check("a leaf itself", [](const Tensor& a, const Tensor&) { return a; }, {3});
  check("the other leaf", [](const Tensor&, const Tensor& b) { return b; }, {3});
  check("a view", [](const Tensor& a, const Tensor&) { return reshape(a, {6}); }, {3});
  check("twice", [](const Tensor& a, const Tensor&) { return add(a, a); }, {6});
  check("both", [](const Tensor& a, const Tensor& b) { return sub(a, add(b, b)); }, {-6, 3});
}

TEST_CASE("gradients: of a concat, one that waits long is copied out, so that the whole goes", "[autograd]") {
  constexpr std::int64_t rows = 64, width = 32;
  constexpr std::size_t unit = rows * width * 4;
  // Peak bytes of a backward in which a skip waits for the backward of `steps` nodes and two wide products; and x's
  // gradient.
  const auto pass = [](memory::Device device, int steps) {
    memory::Options options;
    options.trace = true;
    const memory::Stack stack = memory::make_resource(device, std::move(options));
    const ResourceScope scope(stack.top);
    RandomGenerator generator(3);
    const GeneratorScope random(generator);
    const Tensor x = randn({rows, width}, DType::f32, device).require_grad();
    const Tensor wide = full({16 * width, width}, 0.25, DType::f32, device),
                 narrow = full({width, 16 * width}, 0.25, DType::f32, device);
    const Tensor ones = full({rows, 2 * width}, 1, DType::f32, device);
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      const Tensor skip = 2 * x;
      Tensor y = linear(linear(3 * x, wide), narrow);
      for (int i = 0; i < steps; ++i) y = 1 * y;
      loss = sum(concat({skip, y}, 1) * ones);
    }
    const std::size_t begin = stack.trace->event_count();
    tape.backward(loss);
    std::size_t peak = 0;
    const std::vector<memory::CategoryBytes> lines = timeline(stack.trace->events());
    for (std::size_t i = begin; i < lines.size(); ++i) {
      peak = std::max(peak, std::accumulate(lines[i].begin(), lines[i].end(), std::size_t{0}));
    }
    return std::pair(peak, device.is_dry ? std::vector<float>() : to_host<float>(x.grad()));
  };
  const auto longest = static_cast<int>(ops::Concat::longest_wait);
  // Between concat and skip are 3 * x, two products and the steps.
  CHECK(pass(dry(cpu), longest - 4).first == pass(dry(cpu), longest - 3).first + unit);
  for (const int steps : {longest - 4, longest - 3}) {
    const auto [peak, gradient] = pass(cpu, steps);
    CHECK(peak == pass(dry(cpu), steps).first);
    for (const float g : gradient) REQUIRE(g == 2 + 3 * 0.25f * 0.25f * 16 * width * width);
  }
}
