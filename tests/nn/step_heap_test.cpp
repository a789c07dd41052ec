// A steady training step makes no heap calls, and a reused tape is as good as a new one.

#include <cstdlib>
#include <stdexcept>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/heap_watch.h"

using namespace thimble;

namespace {

// Two layers, their optimizer, and its step.
struct Layers {
  Tensor w = zeros({4, 4}), v = zeros({4, 4}), x = full({2, 4}, 0.5);
  optim::Sgd optimizer;

  Layers() : optimizer(trained(), options()) {}
  std::vector<optim::Named> trained() {
    w.require_grad();
    v.require_grad();
    return {{"w", w}, {"v", v}};
  }
  static optim::SgdOptions options() {
    optim::SgdOptions options;
    options.rate = 0.1;
    return options;
  }
  Tensor loss() const { return mean(square(linear(relu(linear(x, w)), v) - x)); }
  Tensor step() {
    return nn::training_step(optimizer, [this](std::int64_t) { return loss(); });
  }
};

}  // namespace

#if defined(THIMBLE_TEST_WATCHES_HEAP)
TEST_CASE("step heap: a steady training step asks the heap for nothing", "[step]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Layers layers;
  const auto calls = [&] {
    const long before = heap_watch::heap_calls();
    layers.step();
    return heap_watch::heap_calls() - before;
  };
  for (int i = 0; i < 4; ++i) calls();
  CHECK(calls() == 0);
  const long before = heap_watch::heap_calls();
  void* volatile block = std::malloc(1);
  std::free(block);
  CHECK(heap_watch::heap_calls() == before + 1);  // calls are counted
}

TEST_CASE("step heap: nor do steps of optimizers that take turns over one net", "[step]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Layers layers;
  optim::Sgd of_w({{"w", layers.w}}, Layers::options()), of_v({{"v", layers.v}}, Layers::options());
  const auto calls = [&] {
    const long before = heap_watch::heap_calls();
    for (optim::Sgd* const optimizer : {&of_w, &of_v}) {
      nn::training_step(*optimizer, [&](std::int64_t) { return layers.loss(); });
    }
    return heap_watch::heap_calls() - before;
  };
  for (int i = 0; i < 4; ++i) calls();
  CHECK(calls() == 0);
}

TEST_CASE("step heap: nor do the steps of whole models", "[step]") {
  models::ModelOptions text, image;
  text.layers = 2, text.width = 32, text.heads = 4, text.sequence = 16, text.dropout = 0.1;
  image.image = 32, image.width = 8;
  const auto setup_of = [](const char* model, const char* optimizer, const models::ModelOptions& sizes) {
    models::Setup setup;
    setup.model = model;
    setup.batch = 2;
    setup.optimizer.name = optimizer;
    setup.sizes = sizes;
    return setup;
  };
  std::vector<models::Setup> setups = {setup_of("char-gpt", "adamw", text), setup_of("resnet18", "momentum", image)};
  for (const char* precision : {"O1", "O2", "bf16-stochastic", "bf16-kahan", "fp8", "fp8-current", "fp8-block"}) {
    setups.push_back(setup_of("char-gpt", "adamw8", text));
    setups.back().precision.policy = precision;
    setups.back().precision.dtype = nn::precision(precision).parameters;
  }
  for (const char* optimizer : {"sgd", "momentum8", "adafactor"}) {
    setups.push_back(setup_of("resnet18", optimizer, image));
    setups.back().micro_batches = 2;
  }
  for (const models::Setup& setup : setups) {
    INFO(setup.model << ", " << setup.optimizer.name << ", " << setup.precision.policy);
    const memory::Stack stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    const auto run = models::zero_batch_run(setup)(cpu);
    for (int i = 0; i < 4; ++i) run->step();
    const long before = heap_watch::heap_calls();
    run->step();
    CHECK(heap_watch::heap_calls() == before);
  }
}
#endif

TEST_CASE("step heap: a tape that was used before holds nothing of that", "[step]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Tensor x = full({1}, 3);
  x.require_grad();
  Tensor stale;
  const std::size_t live = stack.ledger->bytes();
  {
    const SpareTape tape;
    const Recording on(*tape);
    stale = x * x;
    CHECK(tape->node_count() == 1);
  }
  CHECK(stack.ledger->bytes() == live + stale.storage()->bytes());
  const SpareTape tape;
  CHECK(tape->node_count() == 0);
  Tensor loss;
  {
    const Recording on(*tape);
    CHECK_THROWS_AS(x * stale, AutogradError);  // recorded on another tape
    loss = x * stale.detach();
  }
  {
    const SpareTape other;  // nested in the first, so another tape
    CHECK(&*other != &*tape);
    CHECK(other->node_count() == 0);
  }
  tape->backward(loss);
  CHECK(to_host<float>(x.grad())[0] == 9);
}

TEST_CASE("step heap: a step that throws leaves a tape that can be used", "[step]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Layers layers, plain;
  for (int i = 0; i < 3; ++i) {
    const auto fail = [&](std::int64_t) -> Tensor {
      layers.loss();
      throw std::runtime_error("out of data");
    };
    CHECK_THROWS_AS(nn::training_step(layers.optimizer, fail), std::runtime_error);
    CHECK(to_host<float>(layers.step()) == to_host<float>(plain.step()));
  }
}
