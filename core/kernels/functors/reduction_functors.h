#pragma once
// Elementwise functors that structured operators use for their gradients (reductions and losses). They have no gradient
// functions unless they are operators themselves.

#include <cmath>

#include <thimble/core/kernels/functors/binary.h>
#include <thimble/core/kernels/functors/functor.h>
#include <thimble/core/kernels/reduce.h>
#include <thimble/core/numbers/math.h>

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

/// y = |a - b|; the gradient of equal operands is 0. Keeps both.
struct AbsoluteDifference {
  static constexpr const char* name = "l1_loss";
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    const T d = a - b;
    return d < T(0) ? -d : d;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return a > b ? dy : a < b ? -dy : T(0);
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return a > b ? -dy : a < b ? dy : T(0);
  }
};

/// y = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2), d = a - b. Keeps both. (Huber 1964, equation 2.6.)
struct Huber {
  static constexpr const char* name = "huber_loss";
  double delta = 1;
  template <class T>
  THIMBLE_HD T fwd(T a, T b) const {
    const T d = a - b, size = d < T(0) ? -d : d, most = static_cast<T>(delta);
    return math::select_if_near(d, most, T(0.5) * d * d, most * (size - T(0.5) * most));
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return slope<T>(a - b) * dy;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> a, Rhs<T> b, T dy) const {
    return slope<T>(b - a) * dy;
  }

 private:
  template <class T>
  THIMBLE_HD T slope(T d) const {
    const T most = static_cast<T>(delta);
    return d > most ? most : d < -most ? -most : d;
  }
};

/// y = p t log(1 + e^-z) + (1 - t) log(1 + e^z): binary cross entropy of a logit z and a target t in [0, 1], p the
/// weight of positive targets. No terms cancel, however large |z| is. Keeps both.
struct BceWithLogits {
  static constexpr const char* name = "bce_with_logits";
  double positive_weight = 1;
  template <class T>
  THIMBLE_HD T fwd(T z, T t) const {
    const Softplus<T> of(z);
    return static_cast<T>(positive_weight) * t * of.minus + (T(1) - t) * of.plus;
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Lhs<T> in, Rhs<T> t, T dy) const {
    const T z = in;
    return dy * ((T(1) - t) * math::sigmoid(z) - static_cast<T>(positive_weight) * t * math::sigmoid(-z));
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> in, T dy) const {
    const Softplus<T> of(in.value);
    return dy * (static_cast<T>(positive_weight) * of.minus - of.plus);
  }

 private:
  /// x if x > 0, else 0.
  template <class T>
  THIMBLE_HD static T positive_part(T x) {
    return x > T(0) ? x : T(0);
  }
#if !defined(__CUDA_ARCH__)  // without a branch, so that loops over it vectorize
  THIMBLE_HD static float positive_part(float x) {
    using math::detail::bits_of;
    return math::detail::from_bits(bits_of(x) & ((bits_of(x) >> 31) - 1));
  }
#endif

  /// log(1 + e^z) and log(1 + e^-z).
  template <class T>
  struct Softplus {
    T plus, minus;
    THIMBLE_HD explicit Softplus(T z) {
      const T rest = math::softplus_rest(z);
      plus = positive_part(z) + rest;
      minus = rest + positive_part(-z);
    }
  };
};

/// y = t (log t - x) of a log-probability x and a target t, a probability (0 gives 0) or its logarithm. The gradient of
/// x keeps only t. (Kullback and Leibler 1951, per element.)
struct KlDivergence {
  static constexpr const char* name = "kl_div";
  bool is_log_target = false;
  template <class T>
  THIMBLE_HD T fwd(T x, T t) const {
    if (is_log_target) return math::exp(t) * (t - x);
    return t * (math::log(math::select_if_zero(t, T(1), t)) - math::select_if_zero(t, T(0), x));
  }
  template <class T>
  THIMBLE_HD T bwd_lhs(Rhs<T> in, T dy) const {
    const T t = in;
    return -(is_log_target ? math::exp(t) : t) * dy;
  }
  template <class T>
  THIMBLE_HD T bwd_rhs(Lhs<T> x, Rhs<T> in, T dy) const {
    const T t = in;
    if (is_log_target) return math::exp(t) * (t - x + T(1)) * dy;
    return math::select_if_zero(t, T(0), (math::log(t) + T(1) - x) * dy);
  }
};

/// The functor that evaluates a map of the reduction kernels (core/kernels/reduce.h) on a pair.
template <kernels::ReduceMap map>
constexpr auto pair_functor([[maybe_unused]] double parameter) {
  using kernels::ReduceMap;
  if constexpr (map == ReduceMap::squared_difference) {
    return SquaredDifference{};
  } else if constexpr (map == ReduceMap::product) {
    return Mul{};
  } else if constexpr (map == ReduceMap::absolute_difference) {
    return AbsoluteDifference{};
  } else if constexpr (map == ReduceMap::huber) {
    return Huber{parameter};
  } else if constexpr (map == ReduceMap::bce_with_logits) {
    return BceWithLogits{parameter};
  } else {
    static_assert(map == ReduceMap::kl_divergence);
    return KlDivergence{parameter != 0};
  }
}

/// dx = x / y dy, and 0 where y = 0: the gradient of y = sqrt(sum x^2).
struct NormGradient {
  static constexpr const char* name = "norm_gradient";
  template <class T>
  THIMBLE_HD T fwd(T x, T y, T dy) const {
    return y == T(0) ? T(0) : x / y * dy;
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
