// Answers to the exercises of chapter 3, docs/book/03-where-the-bytes-are.md.

#include <thimble/models/techniques/setup.h>
#include <thimble/models/theory.h>
#include <thimble/models/training/costs.h>
#include <thimble/nn/step/profile.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("exercise 3.1: where the probabilities overtake the rest", "[exercise]") {
  // e a s^2 b > 16 e s b h where s > 16 h / a = 1024.
  const auto share = [](std::int64_t sequence) {
    models::ModelOptions sizes;
    sizes.build = models::Build::textbook, sizes.dropout = 0;
    sizes.sequence = sequence, sizes.width = 768, sizes.heads = 12, sizes.layers = 1;
    const models::LayerTheory layer = models::make_theory("gpt2", sizes).layers.at(0);
    std::int64_t square = 0, rest = 0;
    for (const models::Term& term : layer.kept) {
      if (term.name == "norm statistics") continue;
      (term.name == "probabilities" ? square : rest) += term.bytes(1);
    }
    return static_cast<double>(square) / static_cast<double>(rest);
  };
  CHECK(share(1023) < 1);
  CHECK(share(1024) == 1);
  CHECK(share(1025) > 1);
}

TEST_CASE("exercise 3.2: two dry runs give S and A", "[exercise]") {
  const auto peak = [](std::int64_t batch) {
    models::Setup setup;
    setup.model = "char-gpt", setup.batch = batch;
    setup.sizes.layers = 4, setup.sizes.width = 64, setup.sizes.heads = 4, setup.sizes.sequence = 64;
    return static_cast<double>(nn::profile_training(dry(cpu), models::zero_batch_run(setup)).peak_live_bytes);
  };
  const double a = (peak(16) - peak(8)) / 8, s = peak(8) - 8 * a;
  const double predicted = s + 24 * a;
  CHECK(predicted == Approx(peak(24)).epsilon(0.01));
}

TEST_CASE("exercise 3.3: Adam for GPT-2", "[exercise]") {
  const models::Theory theory = models::make_theory("gpt2");
  const models::ModelState state = theory.state(2);
  CHECK(state.parameter_elements == 124'439'808);
  CHECK(state.optimizer == 8 * state.parameter_elements);
  CHECK(state.total() == 16 * state.parameter_elements);
}
