// Answers to the exercises of chapter 14, docs/book/14-many-devices.md.

#include <thimble/autograd/functions.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>

#include "support/catch.h"

using namespace thimble;

TEST_CASE("exercise 14.1: ZeRO for 7.5 billion parameters", "[exercise]") {
  const double p = 7.5, n = 64;
  CHECK(16 * p == Approx(120));
  CHECK(4 * p + 12 * p / n == Approx(31.4).epsilon(0.01));
  CHECK(2 * p + 14 * p / n == Approx(16.6).epsilon(0.01));
  CHECK(16 * p / n == Approx(1.9).epsilon(0.02));
}

TEST_CASE("exercise 14.2: backward of a column-parallel layer", "[exercise]") {
  // y = x [A_0 A_1], so dx = dy_0 A_0^T + dy_1 A_1^T: each rank computes one term, and an all-reduce adds them.
  const Tensor x = randn({3, 4}, DType::f64), a = randn({4, 6}, DType::f64), dy = randn({3, 6}, DType::f64);
  const auto times = [](const Tensor& l, const Tensor& r) { return to_host<double>(matmul(l, transpose(r))); };
  const std::vector<double> whole = times(dy, a);
  const std::vector<double> first = times(slice(dy, 1, 0, 3), slice(a, 1, 0, 3));
  const std::vector<double> second = times(slice(dy, 1, 3, 6), slice(a, 1, 3, 6));
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(first[i] + second[i] == Approx(whole[i]).margin(1e-12));
}

TEST_CASE("exercise 14.3: a cache of keys and values", "[exercise]") {
  const std::int64_t layers = 32, key_heads = 8, numbers = 128, tokens = 8192, bytes = 2;
  CHECK(2 * bytes * layers * key_heads * numbers * tokens == std::int64_t{1} << 30);  // a quarter of 32 heads' bytes
}
