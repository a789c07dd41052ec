// Answers to the exercises of chapter 4, docs/book/04-how-a-dry-run-knows.md.

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

namespace {

nn::MemoryProfile traced(memory::Device device) {
  models::Setup setup;
  setup.model = "char-gpt", setup.batch = 2;
  setup.sizes.layers = 2, setup.sizes.width = 32, setup.sizes.heads = 2, setup.sizes.sequence = 16;
  return nn::profile_training(device, models::zero_batch_run(setup), 2, true);
}

}  // namespace

TEST_CASE("exercise 4.1: the same events", "[exercise]") {
  const nn::MemoryProfile dry_run = traced(dry(cpu)), real_run = traced(cpu);
  CHECK(dry_run.events.size() > 100);
  // Events compare kind, block, bytes, category and path. Only if all are equal are the addresses equal, and so the
  // committed bytes.
  CHECK(dry_run.events == real_run.events);
  CHECK(dry_run.peak_bytes == real_run.peak_bytes);
}

TEST_CASE("exercise 4.2: the peak from a trace", "[exercise]") {
  const nn::MemoryProfile run = traced(dry(cpu));
  std::size_t live = 0, peak = 0;
  for (const memory::Trace::Event& event : run.events) {
    if (event.action == memory::Trace::Action::allocate) live += event.bytes;
    if (event.action == memory::Trace::Action::free) live -= event.bytes;
    peak = std::max(peak, live);
  }
  CHECK(peak == run.peak_live_bytes);
}

TEST_CASE("exercise 4.3: a dry device has no values", "[exercise]") {
  const Tensor loss = full({1}, 2.5, DType::f32, dry(cpu));
  // A zero would send the program down a branch that the real run may not take: a wrong plan, silently.
  CHECK_THROWS_AS(item(loss), DeviceError);
  CHECK(item(full({1}, 2.5)) == 2.5);
}
