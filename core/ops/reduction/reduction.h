#pragma once
// Reductions over any set of axes, with or without size-1 axes left in their place. `axes` is a mask
// (core/ops/reduce.h). core/kernels/reduce.h fixes the order of accumulation: a function of only the
// reduction's length.

#include <thimble/core/ops/op.h>
#include <thimble/core/ops/reduce.h>

namespace thimble::ops {

/// y = sum x; 0 for no elements. Any dtype; integers and bool give i64. dx = dy, repeated by strides without a copy.
/// Keeps nothing.
struct Sum {
  static constexpr const char* name = "sum";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Shape from;
  };
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = (sum x) / n, rounded once; NaN for no elements. dx = dy / n, repeated by strides. Keeps nothing. Throws
/// DTypeError unless x is floating.
struct Mean {
  static constexpr const char* name = "mean";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Shape from;
  };
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = sum (x - mean)^2 / max(0, n - correction), in two passes, both in f64; NaN when that is 0 / 0. dx = 2 (x -
/// mean) dy / (n - correction). Keeps x, and the mean in f32 (f64 for f64). Throws DTypeError unless x is floating.
struct Variance {
  static constexpr const char* name = "variance";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, mean;
  };
  AxisMask axes = 0;
  bool keep_axes = false;
  int correction = 1;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = the largest (or smallest) element; NaN if any. Any dtype. The gradient goes to the first of equal elements.
/// Keeps its index among the reduced elements, in the smallest of u8, i32, i64 that holds it, and not x. Throws
/// ShapeError for empty reductions.
template <bool is_max>
struct Extreme {
  static constexpr const char* name = is_max ? "max" : "min";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor places;
    Shape from;
  };
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};
using Max = Extreme<true>;
using Min = Extreme<false>;

/// y = the index (i64) of the first largest (or smallest) element, or of the first NaN, counted in row-major order of
/// the reduced axes. No gradient. Throws ShapeError for empty reductions.
template <bool is_max>
struct ArgExtreme {
  static constexpr const char* name = is_max ? "argmax" : "argmin";
  static constexpr Cost cost = Cost::reduction;
  static constexpr Needs differentiable{};
  using Saved = SavesNothing;
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};
using ArgMax = ArgExtreme<true>;
using ArgMin = ArgExtreme<false>;

/// y = sqrt(sum x^2), the sum in f64; 0 for no elements. dx = x / y dy, and 0 where y = 0. Keeps x, and y in x's dtype.
/// Throws DTypeError unless x is floating.
struct Norm {
  static constexpr const char* name = "norm";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, y;
  };
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = sum a b over the masked axes, in f64: no product of f32 values overflows or vanishes. da = b dy, db = a dy.
/// Keeps both by reference. Throws ShapeError unless they have one shape, DTypeError unless floating, DeviceError.
struct DotProduct {
  static constexpr const char* name = "dot_product";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor a, b;
  };
  AxisMask axes = 0;

  Tensor forward(const Tensor& a, const Tensor& b, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = max x + log sum e^(x - max x); -infinity for no elements. dx = e^(x - y) dy. Keeps x, and y: by reference in f32
/// and f64, as an extra in f32 for narrower types, because e^(x - y) takes y's absolute error. Throws DTypeError unless
/// x is floating.
struct LogSumExp {
  static constexpr const char* name = "logsumexp";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x, y;
  };
  AxisMask axes = 0;
  bool keep_axes = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

// ---- Softmax and its logarithm over one axis.

/// y_s = exp(z_s - max z) / sum_u exp(z_u - max z), z = scale x, along `axis`; any floating dtype and shape. Backward:
/// dx = scale y (dy - sum_s dy_s y_s). Keeps y. A row of only -inf gives NaN.
///
/// With `is_causal`, x is a block of attention scores (..., T, S), axis is the last one, and query t attends only to
/// the keys s <= t + (S - T): later ones get y = 0 and no gradient. Needs S >= T, so that every query has a key.
/// (Vaswani et al. 2017, section 3.2.1, with scale = 1 / sqrt(d).)
///
/// Throws ShapeError (axis, rank, S < T), DTypeError.
struct Softmax {
  static constexpr const char* name = "softmax";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor y;
  };
  int axis = -1;
  double scale = 1;
  bool is_causal = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y_s = z_s - max z - log sum_u exp(z_u - max z), z = x, along `axis`; any floating dtype and shape. Backward:
/// dx = dy - exp(y) sum_s dy_s. Keeps y. Throws ShapeError (axis), DTypeError.
struct LogSoftmax {
  static constexpr const char* name = "log_softmax";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor y;
  };
  int axis = -1;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

// ---- Operators along one axis: running sums, products, sorting. core/kernels/lines.h has their kernels.

/// y[j] = sum of x[i], i <= j, along `axis`; integers and bool give i64. Sums are made in f64 (i64) and rounded once.
/// dx[j] = sum of dy[i], i >= j. Keeps nothing.
struct CumSum {
  static constexpr const char* name = "cumsum";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  int axis = -1;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = the product along `axis`, made in f64 and rounded once; 1 for no elements; integers and bool give i64. dx[j] =
/// dy times the product of the others, where there are zeros too. Keeps x.
struct Prod {
  static constexpr const char* name = "prod";
  static constexpr Cost cost = Cost::reduction;
  struct Saved {
    Tensor x;
  };
  int axis = -1;
  bool keep_axis = false;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// The places (i32) of the first `count` elements along `axis` in sorted order: equal ones in the order of their
/// places, NaN larger than all. Any dtype, no gradient. Throws ShapeError for a count that is not in [0, size], or an
/// axis of 2^31 elements.
struct ArgSort {
  static constexpr const char* name = "argsort";
  static constexpr Cost cost = Cost::reduction;
  static constexpr Needs differentiable{};
  using Saved = SavesNothing;
  int axis = -1;
  std::int64_t count = 0;
  bool is_descending = false;
  const char* function = name;  // in errors

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// Classes drawn with the probabilities weights / sum of weights: weights (..., K), floating, points (..., S) in f64,
/// uniform in [0, 1) -> (..., S) in i64. No gradient. Throws ValueError, on a CPU, for the first row whose weights are
/// not finite and at least 0 with a sum above 0.
struct Choose {
  static constexpr const char* name = "multinomial";
  static constexpr Cost cost = Cost::reduction;
  static constexpr Needs differentiable{};
  using Saved = SavesNothing;

  Tensor forward(const Tensor& weights, const Tensor& points, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
