// Answers to the exercises of chapter 11, docs/book/11-which-digits-matter.md.

#include <cmath>
#include <string_view>
#include <utility>

#include <thimble/core/numbers/minifloat.h>
#include <thimble/models/theory.h>

#include "support/catch.h"

using namespace thimble;

namespace {

template <class F>
float rounded(float x) {
  return static_cast<float>(F(x));
}

template <class F>
int counts_to() {
  float n = 0;
  while (rounded<F>(n + 1) != n) n = rounded<F>(n + 1);
  return static_cast<int>(n);
}

}  // namespace

TEST_CASE("exercise 11.1: counting", "[exercise]") {
  // Exact up to where neighbours are 2 apart: 2^8 with 7 bits of mantissa, 2^11 with 10.
  CHECK(counts_to<bf16>() == 256);
  CHECK(counts_to<f16>() == 2048);
}

TEST_CASE("exercise 11.2: Kahan's sum", "[exercise]") {
  const float update = 1.0f / 1024;
  float w = 1, c = 0, plain = 1;
  for (int i = 0; i < 1000; ++i) {
    const float v = update + c, next = rounded<bf16>(w + v);
    c = rounded<bf16>(v - (next - w));
    w = next;
    plain = rounded<bf16>(plain + update);
  }
  const float exact = 1 + 1000.0f / 1024;
  CHECK(plain == 1);
  CHECK(std::abs(w - exact) <= 1.0f / 128);  // the distance of neighbours between 1 and 2
}

TEST_CASE("exercise 11.3: when mixed precision saves 40 %", "[exercise]") {
  // The peak has no gradients: 12 bytes per parameter in f32, 14 under O2. A share a of activations is halved, and the
  // rest grows by 14/12, which saves a / 2 - (1 - a) / 6: 40 % at a = 85 %.
  const auto saved = [](double a) { return a / 2 - (1 - a) / 6; };
  CHECK(std::abs(saved(0.85) - 0.4) < 1e-12);
  struct Step {
    double share, saved;
  };
  const auto step = [](std::int64_t batch) {
    const auto bytes_of = [&](std::string_view policy) {
      const models::Theory theory = models::make_theory("gpt2", {}, nn::precision(policy));
      const models::ModelState state = theory.state(2);
      return std::pair(static_cast<double>(theory.kept_bytes(memory::Category::activation, batch)),
                       static_cast<double>(state.total() - state.gradients));
    };
    const auto [kept, rest] = bytes_of("O0");
    const auto [narrow_kept, narrow_rest] = bytes_of("O2");
    return Step{kept / (kept + rest), 1 - (narrow_kept + narrow_rest) / (kept + rest)};
  };
  for (const std::int64_t batch : {1, 4, 16}) {
    INFO("batch " << batch << ": activations " << step(batch).share << ", saved " << step(batch).saved);
    CHECK((step(batch).saved > 0.4) == (step(batch).share > 0.85));
    CHECK(std::abs(step(batch).saved - saved(step(batch).share)) < 0.01);  // norms, and their gradients, stay in f32
  }
  CHECK(step(4).share < 0.85);
  CHECK(step(16).share > 0.85);
}
