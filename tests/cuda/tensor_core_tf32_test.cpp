// Products in TF32 by the tables of the PTX ISA, and the rounding to what they multiply, on the host.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include <thimble/cuda/kernel/tensor_core.h>

#include "emulated/as_team.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::cuda_kernels;
using namespace thimble::testing;

TEST_CASE("tensor core: words of TF32 are those of its instruction's tables", "[cuda]") {
  // A product of one of A with one of B, wherever they are, goes to one of D.
  for (int k = 0; k < 8; ++k) {
    std::uint32_t a[32][4] = {}, b[32][2] = {};
    const int row = (5 * k + 3) % 16, column = (3 * k + 1) % 8;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        if (same(isa_tf32_a(lane, i), {row, k})) a[lane][i] = bit_cast<std::uint32_t>(3.0f);
      }
      for (int i = 0; i < 2; ++i) {
        if (same(isa_tf32_b(lane, i), {k, column})) b[lane][i] = bit_cast<std::uint32_t>(-7.0f);
      }
    }
    float d[32][4] = {};
    as_team<32>(0, [&](Team<32>& team) { multiply_tf32(d[team.rank()], a[team.rank()], b[team.rank()]); });
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) CHECK(d[lane][e] == (same(isa_c(lane, e), {row, column}) ? -21 : 0));
    }
  }
}

TEST_CASE("tensor core: to TF32 a value is rounded to nearest, halves away from zero", "[cuda]") {
  const auto rounded_value = [](float value) { return bit_cast<float>(tf32_word(value)); };
  CHECK(rounded_value(1 + 0x1p-11f) == 1 + 0x1p-10f);
  CHECK(rounded_value(-1 - 0x1p-11f) == -1 - 0x1p-10f);
  CHECK(rounded_value(1 + 0x1p-11f - 0x1p-23f) == 1);
  CHECK(rounded_value(0x1.fffp0f) == 2);
  CHECK(std::isinf(rounded_value(std::numeric_limits<float>::max())));
  CHECK(rounded_value(-INFINITY) == -INFINITY);
  CHECK(std::isnan(rounded_value(std::nanf(""))));
  std::uint32_t bits = 12345;
  for (int i = 0; i < 20000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float value = bit_cast<float>(bits);
    if (!std::isfinite(value) || std::fabs(value) > 0x1p127f) continue;
    REQUIRE(rounded_value(value) == to_tf32(value));
    REQUIRE((tf32_word(value) & 0x1fffu) == 0);
    if (std::fabs(value) < 0x1p-126f) continue;
    REQUIRE(std::abs(static_cast<double>(rounded_value(value)) - value) <=
            0x1p-11 * std::abs(static_cast<double>(value)));
  }
}

TEST_CASE("tensor core: an operand that was not rounded to TF32 is found on the host", "[cuda]") {
  const std::uint32_t one = bit_cast<std::uint32_t>(1.0f), fine = bit_cast<std::uint32_t>(1 + 0x1p-11f);
  for (const bool is_left : {true, false}) {
    std::uint32_t a[32][4], b[32][2];
    for (int lane = 0; lane < 32; ++lane) {
      for (std::uint32_t& word : a[lane]) word = one;
      for (std::uint32_t& word : b[lane]) word = one;
    }
    (is_left ? a[9][2] : b[9][1]) = fine;
    float d[32][4] = {};
    as_team<32>(0, [&](Team<32>& team) { multiply_tf32(d[team.rank()], a[team.rank()], b[team.rank()]); });
    int found = 0;
    for (const auto& values : d) {
      for (const float value : values) found += std::isnan(value) ? 1 : 0;
    }
    CHECK(found == (is_left ? 8 : 16));  // a row of D, a column of D
  }
}
