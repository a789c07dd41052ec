// Trains a narrow ResNet-18 on handwritten digits and prints how many it reads right.
//
//   mnist_resnet [STEPS] [IMAGES LABELS]
//
// IMAGES and LABELS are IDX files, plain or gzip; without them it learns synthetic pen strokes. The last fifth of the
// images is held out from training, to measure accuracy. On MNIST's 10,000 test images, 625 steps on the first 8,000
// read 99.25 % of the last 2,000 right (80 s on one core).

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/stack.h>
#include <thimble/models/model.h>
#include <thimble/nn/data/idx.h>
#include <thimble/nn/data/source.h>
#include <thimble/nn/data/splitmix.h>
#include <thimble/nn/data/synthetic.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/schedule.h>
#include <thimble/optim/sgd.h>

using namespace thimble;

namespace {

constexpr std::int64_t batch_size = 64;
constexpr std::int64_t largest_shift = 2;  // pixels, each way
constexpr double highest_rate = 0.1;

// Shifts each image by a few pixels along both axes, so that the net learns shapes, not places. pixels: (N, H, W, C).
void shift_randomly(std::vector<float>& pixels, const data::Images& images, float background, std::uint64_t seed) {
  data::SplitMix random(seed);
  const std::int64_t height = images.height, width = images.width, channels = images.channels;
  std::vector<float> from(static_cast<std::size_t>(images.image_elements()));
  for (auto image = pixels.begin(); image != pixels.end(); image += images.image_elements()) {
    std::copy_n(image, from.size(), from.begin());
    const auto down = static_cast<std::int64_t>(random.below(2 * largest_shift + 1)) - largest_shift;
    const auto right = static_cast<std::int64_t>(random.below(2 * largest_shift + 1)) - largest_shift;
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t row = y - down, column = x - right;
        const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
        for (std::int64_t c = 0; c < channels; ++c) {
          image[(y * width + x) * channels + c] =
              is_inside ? from[static_cast<std::size_t>((row * width + column) * channels + c)] : background;
        }
      }
    }
  }
}

models::Batch to_batch(const std::vector<float>& pixels, const std::vector<std::int64_t>& labels,
                       const data::Images& images) {
  const auto samples = static_cast<std::int64_t>(labels.size());
  return {from_host(pixels, {samples, images.height, images.width, images.channels}, cpu, memory::Category::input),
          from_host(labels, {samples}, cpu, memory::Category::input)};
}

void train(models::Model& model, const data::Images& images, const data::ImageSource& source, float background,
           std::int64_t steps) {
  optim::Sgd sgd(model.trainable(), {.rate = highest_rate, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  std::vector<float> pixels(static_cast<std::size_t>(batch_size * images.image_elements()));
  std::vector<std::int64_t> labels(batch_size);
  for (std::int64_t step = 0; step < steps; ++step) {
    sgd.set_rate(optim::cosine_rate(highest_rate, step, steps / 10, steps));
    source.batch<std::int64_t>(step, pixels, labels);
    shift_randomly(pixels, images, background, data::splitmix64(static_cast<std::uint64_t>(step)));
    const models::Batch batch = to_batch(pixels, labels, images);
    const Tensor loss = nn::training_step(sgd, [&](std::int64_t) { return model.loss(batch); });
    if (step % 50 == 0 || step + 1 == steps) {
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(step), item(loss));
      std::fflush(stdout);
    }
  }
}

// Fraction of the source's images whose class has the highest score.
double accuracy(models::Model& model, const data::Images& images, const data::ImageSource& source) {
  model.eval();
  const std::int64_t count = source.sampler().count();
  std::int64_t right = 0;
  for (std::int64_t from = 0; from < count; from += batch_size) {
    std::vector<std::int64_t> labels(static_cast<std::size_t>(std::min(batch_size, count - from)));
    std::vector<float> pixels(labels.size() * static_cast<std::size_t>(images.image_elements()));
    source.sequential<std::int64_t>(from, pixels, labels);
    const auto scores = to_host<float>(model.forward(to_batch(pixels, labels, images).input));  // (N, K)
    const std::int64_t classes = model.options().classes;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto row = scores.begin() + static_cast<std::int64_t>(i) * classes;
      right += std::max_element(row, row + classes) - row == labels[i];
    }
  }
  return static_cast<double>(right) / static_cast<double>(count);
}

void run(std::int64_t steps, const data::Images& images) {
  const std::int64_t tested = images.count / 5, trained = images.count - tested;
  const data::Normalization normalization = data::measure_normalization(images, 0, trained);
  const data::ImageSource train_source(images, 0, trained, batch_size, 1, normalization);
  const data::ImageSource test_source(images, trained, tested, batch_size, 1, normalization);

  models::ModelOptions options;
  options.image = images.height;
  options.channels = images.channels;
  options.classes = images.classes;
  options.width = 8;  // instead of 64: enough for digits
  const auto model = models::make_model("resnet18", options);
  std::printf("resnet18 of width %lld: %lld parameters, %lld images to learn, %lld to read\n",
              static_cast<long long>(options.width), static_cast<long long>(model->parameter_count()),
              static_cast<long long>(trained), static_cast<long long>(tested));
  const auto start = std::chrono::steady_clock::now();
  train(*model, images, train_source, -normalization.mean[0] / normalization.deviation[0], steps);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const double share = accuracy(*model, images, test_source);
  std::printf("accuracy %.2f %% after %lld steps of %lld images in %.1f s, %.1f MiB at the peak\n", 100 * share,
              static_cast<long long>(steps), static_cast<long long>(batch_size), passed.count(),
              static_cast<double>(memory::default_stack(cpu).ledger->max_allocated()) / (1 << 20));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 1 && argc != 2 && argc != 4) throw ValueError("usage: mnist_resnet [STEPS] [IMAGES LABELS]");
    const std::string text = argc > 1 ? argv[1] : "40";
    const std::int64_t steps = std::strtoll(text.c_str(), nullptr, 10);
    if (std::to_string(steps) != text || steps < 1) throw ValueError("'" + text + "' is not a number of steps");
    set_thread_count(1);  // a net this small finishes before a second thread starts
    run(steps, argc == 4 ? data::read_idx(argv[2], argv[3]) : data::synthetic_images(1000, 28, 1, 4, 1));
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
