// Answers to the exercises of chapter 1, docs/book/01-why-220200960-bytes.md.

#include <thimble/memory/summary.h>
#include <thimble/models/model.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

namespace {

nn::MemoryProfile resnet(std::int64_t batch, const char* optimizer, memory::Device device) {
  models::Setup setup;
  setup.model = "resnet18", setup.sizes.image = 32, setup.batch = batch, setup.optimizer.name = optimizer;
  return nn::profile_training(device, models::zero_batch_run(setup));
}

std::size_t of(const memory::CategoryBytes& bytes, memory::Category category) {
  return bytes[static_cast<std::size_t>(category)];
}

}  // namespace

TEST_CASE("exercise 1.1: which rows grow with the batch", "[exercise]") {
  const memory::CategoryBytes one = resnet(16, "momentum", dry(cpu)).peak_by_category;
  const memory::CategoryBytes two = resnet(32, "momentum", dry(cpu)).peak_by_category;
  // Parameters and optimizer state belong to the model, activations and the batch to the samples.
  CHECK(of(two, memory::Category::parameter) == of(one, memory::Category::parameter));
  CHECK(of(two, memory::Category::optimizer) == of(one, memory::Category::optimizer));
  CHECK(of(two, memory::Category::input) == 2 * of(one, memory::Category::input));
  const double growth = static_cast<double>(of(two, memory::Category::activation)) /
                        static_cast<double>(of(one, memory::Category::activation));
  CHECK(growth > 1.8);
  CHECK(growth < 2.2);
}

TEST_CASE("exercise 1.2: what an optimizer adds", "[exercise]") {
  // Per parameter, sgd keeps nothing, momentum one number, adam two, each of four bytes.
  const auto state = [](const char* optimizer) {
    return of(resnet(16, optimizer, dry(cpu)).peak_by_category, memory::Category::optimizer);
  };
  const std::size_t parameters = 11'173'962;
  CHECK(state("sgd") == 0);
  CHECK(state("momentum") == 4 * parameters);
  CHECK(state("adam") == 8 * parameters);
}

TEST_CASE("exercise 1.3: a real run commits the predicted bytes", "[exercise]") {
  for (const std::int64_t batch : {1, 3, 5}) {
    const nn::MemoryProfile predicted = resnet(batch, "momentum", dry(cpu));
    const nn::MemoryProfile measured = resnet(batch, "momentum", cpu);
    CHECK(measured.peak_bytes == predicted.peak_bytes);
    CHECK(measured.peak_live_bytes == predicted.peak_live_bytes);
    CHECK(measured.peak_bytes % (2 << 20) == 0);  // whole granules
  }
}
