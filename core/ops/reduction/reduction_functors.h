#pragma once
// Elementwise functors that structured operators use for their gradients (reductions and losses). They have no gradient
// functions unless they are operators themselves.

#include <thimble/core/numbers/math.h>
#include <thimble/core/ops/elementwise/functor.h>

namespace thimble::ops {

/// y = (a - b)^2. Keeps both.
struct SquaredDifference {
  static constexpr const char* name = "squared_difference";
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    return (a - b) * (a - b);
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return (a - b) * (T(2) * dy);
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return (b - a) * (T(2) * dy);
  }
};

/// dx = factor (x - mean) dy: the gradient of a variance, factor = 2 / (n - correction).
struct VarianceGradient {
  static constexpr const char* name = "variance_gradient";
  double factor = 1;
  template <class T>
  THIMBLE_HD T fwd(T x, T mean, T dy) const {
    return static_cast<T>(factor) * (x - mean) * dy;
  }
};

/// dx = e^(x - y) dy, and 0 where y = -infinity: the gradient of y = log sum e^x.
struct LogSumExpGradient {
  static constexpr const char* name = "logsumexp_gradient";
  template <class T>
  THIMBLE_HD T fwd(T x, T y, T dy) const {
    const T p = math::exp(x - y);
    return y < T(0) && y - y != T(0) ? T(0) : p * dy;
  }
};

}  // namespace thimble::ops
