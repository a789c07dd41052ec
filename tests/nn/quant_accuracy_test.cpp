// The cost of 8 bits for two nets trained on MNIST: accuracy with every calibrator, bytes of the files, error per
// layer. Tests that train the nets fully, a few minutes of one core, are hidden ([.quant]). THIMBLE_DATA names the
// folder of data sets.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/models/model.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/quant/calibrate.h>
#include <thimble/nn/quant/error_report.h>
#include <thimble/nn/quant/quantized_model.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/schedule.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/kernel_data.h"
#include "support/skip.h"

namespace quant_accuracy_test {

using namespace thimble;
using namespace thimble::nn::quant;

constexpr std::int64_t batch_size = 64;
constexpr std::int64_t calibration_batches = 4;

/// MNIST's test images: four fifths for training, the rest for testing.
struct Digits {
  data::Images images;
  std::int64_t trained, tested;
  data::Normalization normalization;
  data::ImageSource train, test;

  explicit Digits(const std::string& folder)
      : images(data::read_idx(folder + "/t10k-images-idx3-ubyte.gz", folder + "/t10k-labels-idx1-ubyte.gz")),
        trained(images.count * 4 / 5),
        tested(images.count - trained),
        normalization(data::measure_normalization(images, 0, trained)),
        train(images, 0, trained, batch_size, 1, normalization),
        test(images, trained, tested, batch_size, 1, normalization) {}

  models::Batch batch(const data::ImageSource& source, std::int64_t from, std::int64_t count, bool is_shuffled) const {
    std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
    std::vector<float> pixels(labels.size() * static_cast<std::size_t>(images.image_elements()));
    if (is_shuffled) {
      source.batch<std::int64_t>(from, pixels, labels);
    } else {
      source.sequential<std::int64_t>(from, pixels, labels);
    }
    return {from_host(pixels, {count, images.height, images.width, 1}), from_host(labels, {count})};
  }
};

void fit(models::Model& model, const Digits& digits, std::int64_t steps, double rate) {
  model.train();
  optim::Sgd sgd(model.trainable(), {.rate = rate, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  for (std::int64_t step = 0; step < steps; ++step) {
    sgd.set_rate(optim::cosine_rate(rate, step, steps / 10, steps));
    const models::Batch batch = digits.batch(digits.train, step, batch_size, true);
    nn::training_step(sgd, [&](std::int64_t) { return model.loss(batch); });
  }
  model.eval();
}

template <class F>
double accuracy(const Digits& digits, F&& forward) {
  const NoGrad off;
  std::int64_t right = 0;
  for (std::int64_t from = 0; from < digits.tested; from += batch_size) {
    const std::int64_t count = std::min(batch_size, digits.tested - from);
    const models::Batch batch = digits.batch(digits.test, from, count, false);
    const auto scores = to_host<float>(forward(batch.input));
    const auto labels = to_host<std::int64_t>(batch.target);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto row = scores.begin() + static_cast<std::int64_t>(i) * 10;
      right += std::max_element(row, row + 10) - row == labels[i];
    }
  }
  return static_cast<double>(right) / static_cast<double>(digits.tested);
}

void check_net(const std::string& name, models::ModelOptions options, std::int64_t steps) {
  const char* const data = std::getenv("THIMBLE_DATA");
  REQUIRE(data != nullptr);
  kernel_test::Settings settings;
  set_thread_count(1);
  const Digits digits(std::string(data) + "/mnist");
  options.image = 28;
  options.channels = 1;
  options.classes = 10;
  const auto model = models::make_model(name, options);
  fit(*model, digits, steps, 0.1);
  const double exact = accuracy(digits, [&](const Tensor& x) { return model->forward(x); });
  const std::string folder = std::filesystem::temp_directory_path().string() + "/thimble_quant_" + name;
  nn::save_weights(*model, folder + ".f32");
  const auto f32_bytes = std::filesystem::file_size(folder + ".f32");

  FoldedNet net(
      *model, [&](const Tensor& x) { return model->forward(x); }, digits.batch(digits.train, 0, 1, false).input);
  const auto batch = [&](std::int64_t i) {
    return digits.batch(digits.train, i * batch_size, batch_size, false).input;
  };
  std::printf("%s: %lld parameters, f32 accuracy %.4f\n", name.c_str(),
              static_cast<long long>(model->parameter_count()), exact);
  for (const Activations activations : {Activations::asymmetric, Activations::symmetric}) {
    for (const WeightScales weights : {WeightScales::per_channel, WeightScales::per_tensor}) {
      for (const Calibrator calibrator : calibrators) {
        const Scales scales = calibrate(net, calibration_batches, batch, {calibrator, 99.99, activations, weights});
        QuantizedModel quantized(net, scales);
        const double share = accuracy(digits, [&](const Tensor& x) { return quantized(x); });
        const auto errors = compare(net, quantized, batch(0));
        quantized.save(folder + ".i8");
        const auto i8_bytes = std::filesystem::file_size(folder + ".i8");
        const double ratio = static_cast<double>(f32_bytes) / static_cast<double>(i8_bytes);
        std::printf(
            "  %-10s %-11s %-10s  accuracy %.4f (%.2f %%)  result %5.1f dB, cosine %.5f  file %ju of %ju bytes, %.3f "
            "times smaller\n",
            std::string(to_string(activations)).c_str(), std::string(to_string(weights)).c_str(),
            std::string(to_string(calibrator)).c_str(), share, 100 * share / exact, errors.back().signal_to_noise_db,
            errors.back().cosine, static_cast<std::uintmax_t>(i8_bytes), static_cast<std::uintmax_t>(f32_bytes), ratio);
        INFO(name << " " << to_string(calibrator));
        CHECK(share >= 0.993 * exact);
        CHECK(ratio >= 3.9);
      }
    }
  }
  std::filesystem::remove(folder + ".f32");
  std::filesystem::remove(folder + ".i8");
}

}  // namespace quant_accuracy_test

using namespace quant_accuracy_test;

TEST_CASE("quantization keeps what a short training has learned", "[quant]") {
  const char* const data = std::getenv("THIMBLE_DATA");
  if (data == nullptr || !std::filesystem::exists(std::string(data) + "/mnist")) {
    thimble_test::skip("THIMBLE_DATA names no folder with mnist");
    return;
  }
  kernel_test::Settings settings;
  set_thread_count(1);
  const Digits digits(std::string(data) + "/mnist");
  models::ModelOptions options;
  options.width = 4, options.image = 28, options.channels = 1, options.classes = 10;
  const auto model = models::make_model("resnet18", options);
  fit(*model, digits, 40, 0.1);
  const double exact = accuracy(digits, [&](const Tensor& x) { return model->forward(x); });
  FoldedNet net(
      *model, [&](const Tensor& x) { return model->forward(x); }, digits.batch(digits.train, 0, 1, false).input);
  const Scales scales = calibrate(
      net, 1, [&](std::int64_t i) { return digits.batch(digits.train, i * batch_size, batch_size, false).input; }, {});
  QuantizedModel quantized(net, scales);
  const double share = accuracy(digits, [&](const Tensor& x) { return quantized(x); });
  INFO("f32 " << exact << ", codes " << share);
  CHECK(exact > 0.5);
  CHECK(share > exact - 0.02);
}

TEST_CASE("quantization keeps the accuracy of a ResNet-18 on MNIST", "[.quant]") {
  check_net("resnet18", {.width = 8}, 300);
}

TEST_CASE("quantization keeps the accuracy of a plain residual net of 15 convolutions on MNIST", "[.quant]") {
  check_net("sharedconv", {.width = 16, .shares_kernels = false}, 300);
}
