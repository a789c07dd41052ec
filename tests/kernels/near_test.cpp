// The suite's measure of errors: a NaN or an infinity anywhere is infinitely far.

#include "support/near.h"

#include <limits>
#include <vector>

#include "support/catch.h"

using namespace thimble_test;

TEST_CASE("near: NaN and infinities are never near", "[near]") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  using Values = std::vector<double>;
  struct Row {
    Values got, expected;
    double difference, error;
  };
  const Row rows[] = {
      {{}, {}, 0, 0},
      {{1, -2, 3}, {1, -2, 3}, 0, 0},
      {{1, -2.5, 3}, {1, -2, 3}, 0.5, 0.5 / 3},
      {{nan, 2}, {1, 2}, infinity, infinity},
      {{1, nan, 2}, {1, 1, 2.5}, infinity, infinity},  // later values do not hide it
      {{1, 2}, {1, nan}, infinity, infinity},
      {{1, nan}, {1, nan}, infinity, infinity},
      {{1, infinity}, {1, 2}, infinity, infinity},
      {{1, 2}, {-infinity, 2}, infinity, infinity},
      {{infinity}, {infinity}, infinity, infinity},
      {{1}, {1, 2}, infinity, infinity},
  };
  for (const Row& row : rows) {
    INFO("row " << &row - rows);
    CHECK(largest_difference(row.got, row.expected) == row.difference);
    CHECK(largest_error(row.got, row.expected) == row.error);
  }
  CHECK(largest_difference(std::vector<float>{1.5F}, Values{1}) == 0.5);
}

TEST_CASE("near: the worse of two errors, and the largest of values", "[near]") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  CHECK(worse(1, 2) == 2);
  CHECK(worse(2, 1) == 2);
  CHECK(worse(2, nan) == infinity);
  CHECK(worse(infinity, 1) == infinity);
  CHECK(worse(0, infinity) == infinity);
  CHECK(largest_of(std::vector<float>{1, -3, 2}) == 3);
  CHECK(largest_of(std::vector<double>{1, nan, 2}) == infinity);
  CHECK_FALSE(largest_of(std::vector<double>{nan}) <= 1e300);
}
