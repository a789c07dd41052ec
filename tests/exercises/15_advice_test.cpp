// Answers to the exercises of chapter 15, docs/book/15-advice-on-trial.md.

#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

namespace {

nn::MemoryProfile profile(const models::Setup& setup) {
  return nn::profile_training(dry(cpu), models::zero_batch_run(setup));
}

models::Setup gpt(std::int64_t batch) {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = batch;
  return setup;
}

}  // namespace

TEST_CASE("exercise 15.1: when half is optimizer state", "[exercise]") {
  const auto share = [](std::int64_t batch) {
    const nn::MemoryProfile p = profile(gpt(batch));
    return static_cast<double>(p.peak_by_category[static_cast<std::size_t>(memory::Category::optimizer)]) /
           static_cast<double>(p.peak_live_bytes);
  };
  // 86 MB of state: at a batch of 1 it is half, at 8 a fifth.
  CHECK(share(1) > 0.4);
  CHECK(share(2) < 0.5);
  CHECK(share(8) < 0.25);
}

TEST_CASE("exercise 15.2: what changes bytes", "[exercise]") {
  models::Setup setup = gpt(2);
  const std::size_t before = profile(setup).peak_bytes;
  setup.optimizer.rate = 1e-5;
  CHECK(profile(setup).peak_bytes == before);
  setup.optimizer.name = "sgd";
  CHECK(profile(setup).peak_bytes < before);
}

TEST_CASE("exercise 15.3: twice the sequence", "[exercise]") {
  const auto kept = [](std::int64_t sequence, models::Build build) {
    models::ModelOptions sizes;
    sizes.sequence = sequence, sizes.dropout = 0, sizes.build = build;
    return static_cast<double>(
        models::bytes_of(models::make_theory("gpt2", sizes).layers.at(0).kept, memory::Category::activation, 1));
  };
  CHECK(kept(2048, models::Build::fused) == 2 * kept(1024, models::Build::fused));
  CHECK(kept(2048, models::Build::textbook) > 2.9 * kept(1024, models::Build::textbook));
}
