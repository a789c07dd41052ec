#pragma once
// Distances of results from expected values. A NaN is never near; note that `std::max(worst, NaN)` is `worst`.

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace thimble_test {

/// The larger one of two errors; infinity where `error` is NaN.
inline double worse(double worst, double error) {
  if (std::isnan(error)) return std::numeric_limits<double>::infinity();
  return error <= worst ? worst : error;
}

/// The largest |a - b|; infinity if the sizes differ, a value is NaN, or one of a pair is not finite.
template <class A, class B>
double largest_difference(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = worse(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

/// The largest |got - expected| / (1 + |expected|), with the same exceptions.
template <class A, class B>
double largest_error(const std::vector<A>& got, const std::vector<B>& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(expected[i]);
    most = worse(most, std::fabs(static_cast<double>(got[i]) - value) / (1 + std::fabs(value)));
  }
  return most;
}

/// The largest |v|; infinity where one is NaN.
template <class T>
double largest_of(const std::vector<T>& values) {
  double most = 0;
  for (const T v : values) most = worse(most, std::fabs(static_cast<double>(v)));
  return most;
}

}  // namespace thimble_test
