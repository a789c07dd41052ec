// Training with fake quantization: the straight-through gradient, and a net that adapts to 8 bits.

#include <cmath>
#include <limits>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/model.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/quant/calibrate.h>
#include <thimble/nn/quant/quantized_model.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/kernel_data.h"

namespace quant_training_test {

using namespace thimble;
using namespace thimble::nn::quant;

}  // namespace quant_training_test

using namespace quant_training_test;

TEST_CASE("fake quantization: the gradient passes where the code was not clipped", "[quant]") {
  Tensor x = from_host(std::vector<float>{-2.01F, -1.99F, -0.3F, 0, 0.25F, 0.75F, 3.49F, 3.51F, 1e30F, -1e30F}, {10});
  x.require_grad();
  const Tensor scale = full({1}, 0.5);
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = fake_quantize(x, scale, 4, 0, 11);  // codes -4 to 7 are -2 to 3.5
  }
  CHECK((to_host<float>(y) == std::vector<float>{-2, -2, -0.5F, 0, 0, 1, 3.5F, 3.5F, 3.5F, -2}));
  tape.backward(y, from_host(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {10}));
  CHECK((to_host<float>(x.grad()) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
}

TEST_CASE("fake quantization: what has no codes is refused, and what is no number stays so", "[quant]") {
  const Tensor x = full({2}, 1), scale = full({1}, 0.5);
  CHECK_THROWS_AS(fake_quantize(x, scale, 5, 6, 7), ValueError);
  CHECK_THROWS_AS(fake_quantize(x, scale, 5, 0, 4), ValueError);
  CHECK_THROWS_AS(fake_quantize(x, scale, 0, 0, 1 << 21), ValueError);
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK_THROWS_AS(fake_quantize(x, full({1}, bad), 0, -127, 127), ValueError);
  }
  CHECK_THROWS_AS(fake_quantize(x, full({1}, 1, DType::f64), 0, -127, 127), DTypeError);
  CHECK(std::isnan(to_host<float>(fake_quantize(full({1}, std::nan("")), scale, 0, -127, 127))[0]));
}

TEST_CASE("fake quantization: training on takes back what too narrow ranges cost", "[quant]") {
  kernel_test::Settings settings;
  set_thread_count(1);  // a net this small finishes before a second thread starts
  constexpr std::int64_t samples = 32;
  const data::Images images = data::synthetic_images(256, 12, 1, 4, 1);
  const data::ImageSource source(images, 0, 256, samples, 1, data::measure_normalization(images, 0, 256));
  const auto batch = [&](std::int64_t step) {
    std::vector<std::int64_t> labels(samples);
    std::vector<float> pixels(samples * 12 * 12);
    source.batch<std::int64_t>(step, pixels, labels);
    return models::Batch{from_host(pixels, {samples, 12, 12, 1}), from_host(labels, {samples})};
  };
  const auto model = models::make_model(
      "sharedconv", {.image = 12, .channels = 1, .classes = 4, .layers = 1, .width = 8, .shares_kernels = false});
  const auto train = [&](const std::vector<optim::Named>& parameters, auto&& forward, std::int64_t steps, double rate) {
    optim::Sgd sgd(parameters, {.rate = rate, .momentum = 0.9});
    for (std::int64_t step = 0; step < steps; ++step) {
      const models::Batch b = batch(step);
      nn::training_step(sgd, [&](std::int64_t) { return cross_entropy(forward(b.input), b.target); });
    }
  };
  train(
      model->trainable(), [&](const Tensor& x) { return model->forward(x); }, 120, 0.05);
  model->eval();
  FoldedNet net(
      *model, [&](const Tensor& x) { return model->forward(x); }, batch(0).input);
  // Ranges of codes that clip 20 % of the numbers.
  const Scales scales = calibrate(net, 2, [&](std::int64_t i) { return batch(i).input; }, {Calibrator::percentile, 80});
  const auto loss = [&](auto&& forward) {
    const NoGrad off;
    double sum = 0;
    for (std::int64_t i = 0; i < 4; ++i)
      sum += item(cross_entropy(forward(batch(100 + i).input), batch(100 + i).target));
    return sum / 4;
  };
  QuantizedModel before(net, scales);
  const double loss_before = loss([&](const Tensor& x) { return before(x); });
  net.fake_quantize(scales);
  train(
      net.trainable(), [&](const Tensor& x) { return net(x); }, 60, 0.02);
  QuantizedModel after(net, scales);
  const double loss_after = loss([&](const Tensor& x) { return after(x); });
  const double trained = loss([&](const Tensor& x) { return net(x); });
  const double exact = loss([&](const Tensor& x) { return model->forward(x); });
  INFO("f32 " << exact << ", 8 bits " << loss_before << " -> " << loss_after << ", with fake quantization " << trained);
  CHECK(loss_after < 0.8 * loss_before);
  CHECK(loss_after == Approx(trained).epsilon(0.1).margin(0.02));
}
