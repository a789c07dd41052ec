#pragma once
// A thread's part of log sum exp over a row, in one pass.

#include <cmath>

#include <thimble/cuda/kernel/quick.h>
#include <thimble/cuda/kernel/rows.h>

namespace thimble::cuda_kernels {

/// The value to subtract from x in e^x; if all x are -infinity, all terms are 0.
template <class T>
THIMBLE_DEVICE inline T shift_of(T largest) {
  return largest == -static_cast<T>(INFINITY) ? T(0) : largest;
}

/// The largest of some numbers loaded as S, and the sum of e^(x - largest) over them. NaN and +infinity make the sum
/// NaN.
template <class S>
struct ExponentialSum {
  using T = Wide<S>;
  T largest = -static_cast<T>(INFINITY);
  T sum = 0;

  /// The sum of e^(x - top) for top >= largest.
  THIMBLE_DEVICE T relative_to(T top) const { return sum * exp_of<S>(largest - shift_of(top)); }

  /// -infinity adds nothing.
  template <int count>
  THIMBLE_DEVICE void add(const T (&values)[count]) {
    T top = largest;
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) top = std::fmax(top, values[e]);
    if (top > largest) {
      sum = relative_to(top);
      largest = top;
    }
    const T shift = shift_of(top);
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) sum += exp_of<S>(values[e] - shift);
  }
};

}  // namespace thimble::cuda_kernels
