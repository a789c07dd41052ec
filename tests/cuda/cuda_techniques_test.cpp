// Rows of `thimble reproduce techniques` on a CUDA device whose tensors wait in the host's pinned memory: on a GPU
// where there is one, in a build without CUDA on the host's emulation.

#include <thimble/bench/experiments/techniques.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

TEST_CASE("cuda offload: techniques' rows with an average that is away", "[cuda][offload]") {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.batch = 6;
  setup.sizes.layers = 2, setup.sizes.heads = 2, setup.sizes.width = 32;
  setup.sizes.sequence = 64, setup.sizes.vocabulary = 40;
  constexpr std::size_t slab = std::size_t{2} << 20;
  using bench::Average;
  for (const bench::StepForm& technique :
       {bench::StepForm{.average = Average::offloaded},
        bench::StepForm{.checkpoint = bench::Checkpoint::blocks, .micro_batches = 2, .average = Average::offloaded}}) {
    const nn::MakeRun make = bench::technique_run(setup, technique);
    CHECK(nn::profile_training(dry(cuda()), make).tier_bytes == slab);
    if (!has_cuda()) continue;
    const bench::Comparison compared = bench::compare(cuda(), make);
    CHECK(compared.is_equal());
    CHECK(compared.measured.tier_bytes == slab);
  }
}
