// Answers to the exercises of chapter 10, docs/book/10-what-can-wait.md.

#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

namespace {

models::Setup gpt() {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = 32;
  setup.sizes.layers = 4, setup.sizes.width = 64, setup.sizes.heads = 4, setup.sizes.sequence = 64;
  return setup;
}

std::size_t live_peak(const models::Setup& setup) {
  return nn::profile_training(dry(cpu), models::zero_batch_run(setup)).peak_live_bytes;
}

}  // namespace

TEST_CASE("exercise 10.1: c + d / k", "[exercise]") {
  const auto peak = [](std::int64_t k) {
    models::Setup setup = gpt();
    setup.micro_batches = k;
    return static_cast<double>(live_peak(setup));
  };
  const double d = 2 * (peak(1) - peak(2)), c = peak(1) - d;
  // Too high: with one micro-batch the peak has no gradients, with two it has, so the first difference is smaller than
  // the law predicts. From 2 and 4 on the law holds to a few percent.
  const double d2 = 4 * (peak(2) - peak(4)), c2 = peak(4) - d2 / 4;
  CHECK(c + d / 8 > peak(8));
  CHECK(c + d / 8 < 1.1 * peak(8));
  CHECK(c2 + d2 / 8 == Approx(peak(8)).epsilon(0.03));
}

TEST_CASE("exercise 10.2: the same sum in another order", "[exercise]") {
  // Gradients of a linear layer over 8 samples, and over two halves, each with half the weight.
  const auto gradients = [](std::int64_t parts) {
    RandomGenerator generator(4);
    const GeneratorScope scope(generator);
    const Tensor x = randn({8, 64}), target = randn({8, 16});
    Tensor w = randn({16, 64});
    w.require_grad();
    for (std::int64_t i = 0; i < parts; ++i) {
      Tape tape;
      Tensor loss;
      {
        const Recording on(tape);
        const std::int64_t n = 8 / parts;
        loss = mse_loss(linear(slice(x, 0, i * n, (i + 1) * n), w), slice(target, 0, i * n, (i + 1) * n));
      }
      tape.backward(loss, full({}, 1.0 / static_cast<double>(parts)));
    }
    return to_host<float>(w.grad());
  };
  const std::vector<float> whole = gradients(1), halves = gradients(2);
  double worst = 0;
  bool are_equal = true;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(whole[i] - halves[i])));
    are_equal &= whole[i] == halves[i];
  }
  CHECK_FALSE(are_equal);
  CHECK(worst < 1e-5);
}

TEST_CASE("exercise 10.3: where gradients are at the peak", "[exercise]") {
  const auto saved = [](models::Setup setup) {
    setup.optimizer.clip_norm = 0;
    const std::size_t before = live_peak(setup);
    setup.fuses_optimizer = true;
    return static_cast<double>(before - live_peak(setup)) / static_cast<double>(before);
  };
  models::Setup resnet, mlp;
  resnet.model = "resnet18", resnet.sizes.image = 32, resnet.batch = 16;
  mlp.model = "mlp", mlp.batch = 16;
  CHECK(saved(mlp) > 0.05);     // much state, few activations
  CHECK(saved(resnet) > 0.05);  // its last layers have most of the weights
  CHECK(saved(gpt()) < 0.02);   // the peak is where backward begins
}
