// Answers to the exercises of chapter 5, docs/book/05-computing-again.md.

#include <algorithm>
#include <cstring>

#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/memory/remat/schedule.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("exercise 5.1: the best length of a segment", "[exercise]") {
  // n / m + 17 m is least at m = sqrt(100 / 17) = 2.4.
  const remat::Chain chain = remat::homogeneous_chain(100, 1, 16, 1, 2);
  std::size_t best = 0;
  remat::Bytes lowest = 1'000'000;
  for (std::size_t m = 1; m <= 100; ++m) {
    const remat::Bytes peak = remat::simulate(chain, remat::every_kth(100, m)).peak_bytes;
    if (peak < lowest) lowest = peak, best = m;
  }
  CHECK(best >= 2);
  CHECK(best <= 3);
  CHECK(lowest < remat::simulate(chain, remat::square_root(100)).peak_bytes);
}

TEST_CASE("exercise 5.2: slots for a thousand stages", "[exercise]") {
  // C(c + 3, 3) >= 1000 from c = 17 on: C(20, 3) = 1140, C(19, 3) = 969.
  CHECK(remat::binomial_coefficient(19, 3) < 1000);
  CHECK(remat::binomial_coefficient(20, 3) >= 1000);
  CHECK(remat::revolve_repetitions(1000, 17) == 3);
  CHECK(remat::revolve_repetitions(1000, 16) == 4);
  const remat::Chain chain = remat::homogeneous_chain(1000, 1, 1, 1, 2);
  const remat::ScheduleCost cost = remat::simulate(chain, remat::binomial(1000, 17));
  // 3 without recording, plus the recorded one.
  CHECK(*std::max_element(cost.forward_counts.begin(), cost.forward_counts.end()) <= 3 + 1);
}

TEST_CASE("exercise 5.3: fewer bytes, the same bits", "[exercise]") {
  struct Pass {
    std::size_t kept;
    std::vector<float> gradient;
  };
  const auto pass = [](bool recomputes) {
    RandomGenerator generator(3);
    const GeneratorScope scope(generator);
    const Tensor x = randn({16, 32});
    Tensor v = randn({32, 32}), w = randn({32, 32});
    x.storage()->set_category(memory::Category::input);
    for (const Tensor& t : {v, w}) t.storage()->set_category(memory::Category::parameter);
    v.require_grad(), w.require_grad();
    const auto block = [&](const Tensor& t) { return matmul(relu(matmul(tanh(matmul(t, v)), w)), w); };
    Tape tape;
    Tensor loss;
    {
      const Recording on(tape);
      loss = sum(recomputes ? checkpoint(block, x) : block(x));
    }
    Pass result{tape.kept_bytes(), {}};
    tape.backward(loss);
    result.gradient = to_host<float>(w.grad());
    return result;
  };
  const Pass kept = pass(false), again = pass(true);
  CHECK(again.kept < kept.kept);
  REQUIRE(again.gradient.size() == kept.gradient.size());
  CHECK(std::memcmp(again.gradient.data(), kept.gradient.data(), 4 * kept.gradient.size()) == 0);
}
