// The generator against its published answers, and the distributions made from it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <thimble/core/numbers/philox.h>

#include "support/catch.h"

namespace {

using namespace thimble;

PhiloxBlock draw(std::uint32_t index, std::uint32_t stream) { return philox4x32({{index, 0, 0, 0}}, {{stream, 0}}); }

/// Normal numbers in double with the angle and radius that normal_pair documents.
struct ReferencePair {
  double first, second;
};
ReferencePair reference_normal(std::uint32_t radius_word, std::uint32_t angle_word) {
  const double u = (static_cast<float>(radius_word) + 0.5f) * 0x1p-32f;
  const double radius = std::sqrt(-2 * std::log(u));
  const double angle = angle_word / 4294967296.0 * 2 * std::acos(-1.0);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::vector<double> normal_sample(std::uint32_t blocks) {
  std::vector<double> values;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const PhiloxBlock block = draw(i, 42);
    for (int half = 0; half < 4; half += 2) {
      const NormalPair pair = normal_pair(block.word[half], block.word[half + 1]);
      values.push_back(pair.first);
      values.push_back(pair.second);
    }
  }
  return values;
}

}  // namespace

TEST_CASE("philox: known answers of Philox4x32-10", "[philox]") {
  struct Row {
    PhiloxCounter counter;
    PhiloxKey key;
    std::uint32_t answer[4];
  };
  const Row rows[] = {
      {{{0, 0, 0, 0}}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {{0xffffffff, 0xffffffff}},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       {{0xa4093822, 0x299f31d0}},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Row& row : rows) {
    const PhiloxBlock block = philox4x32(row.counter, row.key);
    for (int i = 0; i < 4; ++i) CHECK(block.word[i] == row.answer[i]);
  }
  static_assert(philox4x32({{0, 0, 0, 0}}, {{0, 0}}).word[0] == 0x6627e8d5);
}

TEST_CASE("philox: every bit of counter and key matters", "[philox]") {
  const PhiloxBlock base = philox4x32({{1, 2, 3, 4}}, {{5, 6}});
  for (int bit = 0; bit < 192; ++bit) {
    PhiloxCounter counter{{1, 2, 3, 4}};
    PhiloxKey key{{5, 6}};
    (bit < 128 ? counter.word[bit / 32] : key.word[bit / 32 - 4]) ^= 1u << (bit % 32);
    const PhiloxBlock block = philox4x32(counter, key);
    int changed = 0;
    for (int i = 0; i < 4; ++i) changed += __builtin_popcount(block.word[i] ^ base.word[i]);
    CHECK(changed > 32);  // 64 expected, standard deviation 5.7
    CHECK(changed < 96);
  }
}

TEST_CASE("philox: uniform numbers", "[philox]") {
  CHECK(uniform_float(0) == 0.0f);
  CHECK(uniform_float(0xFFu) == 0.0f);
  CHECK(uniform_float(0x100u) == 0x1p-24f);
  CHECK(uniform_float(0xFFFFFFFFu) == 1.0f - 0x1p-24f);
  CHECK(uniform_double(0, 0) == 0.0);
  CHECK(uniform_double(0x800u, 0) == 0x1p-53);
  CHECK(uniform_double(0xFFFFFFFFu, 0xFFFFFFFFu) == 1.0 - 0x1p-53);
  CHECK(uniform_double(0, 0x80000000u) == 0.5);

  int cells[64] = {};
  constexpr int blocks = 16'000;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const PhiloxBlock block = draw(i, 7);
    for (const std::uint32_t word : block.word) ++cells[static_cast<int>(uniform_float(word) * 64)];
  }
  double chi_square = 0;
  constexpr double expected = 4.0 * blocks / 64;
  for (const int count : cells) chi_square += (count - expected) * (count - expected) / expected;
  CHECK(chi_square > 30);  // 63 degrees of freedom: the 0.01 % quantiles are 28.6 and 114
  CHECK(chi_square < 110);
}

TEST_CASE("philox: normal numbers follow the formula", "[philox]") {
  double largest_error = 0;
  for (std::uint32_t i = 0; i < 50'000; ++i) {
    const PhiloxBlock block = draw(i, 3);
    const NormalPair pair = normal_pair(block.word[0], block.word[1]);
    const ReferencePair reference = reference_normal(block.word[0], block.word[1]);
    largest_error =
        std::max({largest_error, std::fabs(pair.first - reference.first), std::fabs(pair.second - reference.second)});
  }
  CHECK(largest_error < 1e-6);

  struct Row {
    std::uint32_t angle_word;
    float cosine, sine;  // in units of the radius
  };
  const float half = std::sqrt(0.5f);
  const Row rows[] = {{0, 1, 0},
                      {0x20000000u, half, half},
                      {0x40000000u, 0, 1},
                      {0x60000000u, -half, half},
                      {0x80000000u, -1, 0},
                      {0xA0000000u, -half, -half},
                      {0xC0000000u, 0, -1},
                      {0xE0000000u, half, -half}};
  const float radius = normal_pair(0, 0).first;
  CHECK(radius == Approx(std::sqrt(-2 * std::log(0x1p-33))).epsilon(1e-6));
  for (const Row& row : rows) {
    const NormalPair pair = normal_pair(0, row.angle_word);
    CHECK(std::fabs(pair.first - radius * row.cosine) < 2e-6f);
    CHECK(std::fabs(pair.second - radius * row.sine) < 2e-6f);
  }
  CHECK(normal_pair(0xFFFFFFFFu, 0).first == 0.0f);
}

TEST_CASE("philox: normal numbers have the moments and the shape", "[philox]") {
  std::vector<double> values = normal_sample(50'000);
  const double n = static_cast<double>(values.size());
  double moments[5] = {};
  for (const double value : values) {
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(value, k) / n;
  }
  CHECK(std::fabs(moments[1]) < 4 / std::sqrt(n));
  CHECK(std::fabs(moments[2] - 1) < 4 * std::sqrt(2 / n));
  CHECK(std::fabs(moments[3]) < 4 * std::sqrt(15 / n));
  CHECK(std::fabs(moments[4] - 3) < 4 * std::sqrt(96 / n));

  std::sort(values.begin(), values.end());
  double distance = 0;  // Kolmogorov-Smirnov
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double cumulative = 0.5 * std::erfc(-values[i] / std::sqrt(2.0));
    distance = std::max(distance, std::fabs(cumulative - (static_cast<double>(i) + 0.5) / n));
  }
  CHECK(distance < 1.95 / std::sqrt(n));  // the 0.1 % level
}
