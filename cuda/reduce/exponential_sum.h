#pragma once
// A thread's part of log sum exp over a row that is read once.

#include <cmath>

#include <thimble/cuda/kernel/exponential.h>
#include <thimble/cuda/kernel/rows.h>

namespace thimble::cuda_kernels {

/// The largest of some numbers, and the sum of e^(x - largest) over them, which NaN and +infinity make NaN.
template <class T>
struct ExponentialSum {
  T largest = -static_cast<T>(INFINITY);
  T sum = 0;

  /// The sum with e^(x - top) instead, for a top that is no smaller.
  THIMBLE_DEVICE T relative_to(T top) const { return sum * quick_exp(largest - number(top)); }

  /// The first n of the values.
  template <int count>
  THIMBLE_DEVICE void add(const T (&values)[count], int n) {
    T top = largest;
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) top = e < n ? std::fmax(top, values[e]) : top;
    sum = relative_to(top);
    largest = top;
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      if (e < n) sum += quick_exp(values[e] - number(top));
    }
  }

 private:
  // Where there is nothing but -infinity, all terms are 0.
  THIMBLE_DEVICE static T number(T top) { return top == -static_cast<T>(INFINITY) ? T(0) : top; }
};

}  // namespace thimble::cuda_kernels
