// A step's bytes grow linearly: attention's memory with the sequence, everything of a batch with the batch.

#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

namespace step_scaling_test {

std::size_t activations_at_peak(std::int64_t sequence, std::int64_t batch) {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 32;
  setup.sizes.sequence = sequence;
  setup.batch = batch;
  const nn::MemoryProfile profile = nn::profile_training(dry(cpu), models::zero_batch_run(setup));
  return profile.peak_by_category[static_cast<std::size_t>(Category::activation)];
}

}  // namespace step_scaling_test

using namespace step_scaling_test;

TEST_CASE("step_scaling: activations are linear in sequence and batch", "[step_scaling]") {
  const std::size_t at_8k = activations_at_peak(8192, 1), at_16k = activations_at_peak(16'384, 1),
                    at_32k = activations_at_peak(32'768, 1);
  CHECK(at_16k > at_8k);
  CHECK(at_32k - at_16k == 2 * (at_16k - at_8k));
  // A score for every pair of a query and a key would be 4 GiB for each head.
  CHECK(at_32k < std::size_t{1} << 30);
  // From 8192 tokens on, as above: with fewer, the bytes kept at the peak are not quite linear.
  const std::size_t of_32 = activations_at_peak(256, 32), of_64 = activations_at_peak(256, 64);
  const std::size_t of_128 = activations_at_peak(256, 128);
  CHECK(of_64 > of_32);
  CHECK(of_128 - of_64 == 2 * (of_64 - of_32));
}
