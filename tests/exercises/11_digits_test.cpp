// Answers to the exercises of chapter 11, docs/book/11-which-digits-matter.md.

#include <cmath>

#include <thimble/core/numbers/half.h>
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
  // Up to where neighbours are 2 apart: 2^8 with 7 bits of mantissa, 2^11 with 10.
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
  CHECK(std::abs(w - exact) <= 1.0f / 128);  // a distance of neighbours between 1 and 2
}

TEST_CASE("exercise 11.3: when mixed precision saves 40 %", "[exercise]") {
  // With a share x of activations that are halved, and state that stays, x / 2 is saved: 40 % needs x = 80 %.
  const auto share = [](std::int64_t batch) {
    const models::Theory theory = models::make_theory("gpt2");
    const auto kept = static_cast<double>(theory.kept_bytes(Category::activation, batch));
    return kept / (kept + static_cast<double>(theory.state(2).total()));
  };
  CHECK(share(1) < 0.8);
  CHECK(share(4) < 0.8);
  CHECK(share(16) > share(4));
}
