#pragma once
// The maths of the kernel family of lines (core/kernels/lines.h), shared by CPU and CUDA.

#include <cstdint>
#include <limits>

#include <thimble/core/config.h>

namespace thimble::kernels {

/// True where element i, of value a, comes before element j, of value b, in sorted order.
template <class T>
THIMBLE_HD inline bool comes_before(T a, std::int64_t i, T b, std::int64_t j, bool is_descending) {
  const bool a_is_nan = a != a, b_is_nan = b != b;
  const bool is_less = a_is_nan ? false : b_is_nan ? true : a < b;
  const bool is_more = b_is_nan ? false : a_is_nan ? true : b < a;
  if (is_less == is_more) return i < j;
  return is_descending ? is_more : is_less;
}

/// The product of all factors of a line but one. It leaves out zeros and infinities, which are counted, but keeps the
/// infinities' signs.
template <class T>
struct Factors {
  T product = 1;
  std::int64_t zeros = 0, infinities = 0;
  THIMBLE_HD static bool is_infinite(T x) { return x == x && x - x != T(0); }
  THIMBLE_HD static T sign(T x) { return x < T(0) ? T(-1) : T(1); }
  THIMBLE_HD static T with(T product, std::int64_t zeros, std::int64_t infinities) {
    if (zeros > 0) product *= T(0);
    if (infinities > 0) product *= std::numeric_limits<T>::infinity();  // NaN with a zero
    return product;
  }
  THIMBLE_HD void take(T x) {
    if (x == T(0)) {
      ++zeros;
    } else if (is_infinite(x)) {
      ++infinities, product *= sign(x);
    } else {
      product *= x;
    }
  }
  THIMBLE_HD T all() const { return with(product, zeros, infinities); }
  THIMBLE_HD T without(T x) const {
    if (x == T(0)) return with(product, zeros - 1, infinities);
    if (is_infinite(x)) return with(product * sign(x), zeros, infinities - 1);
    return with(product / x, zeros, infinities);
  }
};

/// One row of kernels::ChooseArgs.
THIMBLE_HD inline std::int64_t chosen_place(const double* sums, std::int64_t length, double point) {
  const double total = sums[length - 1], at = point * total;
  const bool is_last = !(at < total);  // only by rounding; take the last place that adds something
  std::int64_t low = 0, high = length - 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool is_beyond = is_last ? sums[middle] >= total : sums[middle] > at;
    if (is_beyond) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace thimble::kernels
