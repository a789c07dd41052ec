// Answers to the exercises of chapter 13, docs/book/13-int8-inference.md.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "support/catch.h"

TEST_CASE("exercise 13.1: signal to noise of eight bits", "[exercise]") {
  // Values spread evenly over [-1, 1] have a mean square of 1/3; s = 2/255.
  const double s = 2.0 / 255, by_formula = 10 * std::log10((1.0 / 3) / (s * s / 12));
  std::mt19937 random(1);
  double signal = 0, noise = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double x = static_cast<double>(random()) / std::numeric_limits<std::uint32_t>::max() * 2 - 1;
    const double back = std::round(x / s) * s;
    signal += x * x, noise += (x - back) * (x - back);
  }
  CHECK(by_formula == Approx(48.1).epsilon(0.01));
  CHECK(10 * std::log10(signal / noise) == Approx(by_formula).epsilon(0.01));
}

TEST_CASE("exercise 13.2: a batch norm that disappears", "[exercise]") {
  const double w[3] = {0.5, -1.25, 2}, b = 0.3, mean = 0.7, variance = 1.9, gamma = 1.4, beta = -0.2, epsilon = 1e-5;
  const double r = gamma / std::sqrt(variance + epsilon);
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    double plain = b, folded = (b - mean) * r + beta;
    for (const double weight : w) {
      const double x = static_cast<double>(random() % 1000) / 100;
      plain += weight * x;
      folded += weight * r * x;
    }
    CHECK(folded == Approx(gamma * (plain - mean) / std::sqrt(variance + epsilon) + beta));
  }
}

TEST_CASE("exercise 13.3: products in 32 bits", "[exercise]") {
  const std::int64_t largest = std::numeric_limits<std::int32_t>::max(), product = 127 * 255;
  CHECK(largest / product == 66'311);
}
