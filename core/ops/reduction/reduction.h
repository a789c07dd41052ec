#pragma once
// Reductions over any set of axes, which keep_axes leaves with size 1. `axes` is a mask (core/ops/reduce.h). The order
// of accumulation depends only on the reduction's length (core/kernels/reduce.h).

#include <thimble/core/ops/op.h>
#include <thimble/core/ops/reduce.h>

namespace thimble::ops {

/// y = sum x; 0 without elements. Any dtype; integers and bool give i64. dx = dy, repeated by strides. Keeps nothing.
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

/// y = (sum x) / n, rounded once; NaN without elements. dx = dy / n, repeated by strides. Keeps nothing. Throws
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

/// y = sum (x - mean)^2 / max(0, n - correction), in two passes, both in f64; 0 / 0 is NaN. dx = 2 (x - mean) dy /
/// (n - correction). Keeps x, and the mean in f32 (f64 for f64). Throws DTypeError unless x is floating.
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

/// y = the largest (or smallest) element, or NaN if there is one. Any dtype. The gradient goes to the first of equal
/// elements. Keeps only its index among the reduced elements, in the smallest of u8, i32, i64 that holds it. Throws
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

/// y = sqrt(sum x^2), with the sum in f64; 0 without elements. dx = x / y dy, or 0 if y = 0. Keeps x, and y in x's
/// dtype. Throws DTypeError unless x is floating.
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

/// y = sum a b over the masked axes, in f64, so that no product of f32 values overflows or vanishes. da = b dy, db = a
/// dy. Keeps both by reference. Throws ShapeError unless they have one shape, DTypeError unless floating, DeviceError.
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

/// y = max x + log sum e^(x - max x); -infinity without elements. dx = e^(x - y) dy. Keeps x and y: y by reference in
/// f32 and f64, as an f32 extra for narrower types, because y's absolute error is the relative error of e^(x - y).
/// Throws DTypeError unless x is floating.
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
/// With `is_causal`, x are attention scores (..., T, S), axis is the last one, and query t sees only the keys
/// s <= t + (S - T): later keys get y = 0 and no gradient. Needs S >= T, so that every query sees a key. (Vaswani et
/// al. 2017, section 3.2.1, with scale = 1 / sqrt(d).)
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

/// y[j] = sum of x[i], i <= j, along `axis`; integers and bool give i64. Sums are in f64 (i64) and rounded once. dx[j]
/// = sum of dy[i], i >= j. Keeps nothing.
struct CumSum {
  static constexpr const char* name = "cumsum";
  static constexpr Cost cost = Cost::elementwise;
  using Saved = SavesNothing;
  int axis = -1;

  Tensor forward(const Tensor& x, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

/// y = the product along `axis`, in f64 and rounded once; 1 without elements; integers and bool give i64. dx[j] = dy
/// times the product of the other elements, also if some are zero. Keeps x.
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

/// The places (i32) of the first `count` elements along `axis` in sorted order. The sort is stable, and NaN is larger
/// than all. Any dtype, no gradient. Throws ShapeError for a count outside [0, size], or an axis of 2^31 elements.
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

/// Draws classes with the probabilities weights / sum of weights: weights (..., K), floating, and points (..., S) in
/// f64, uniform in [0, 1) -> (..., S) in i64. No gradient. On a CPU, throws ValueError for the first row whose weights
/// are not finite and at least 0 with a sum above 0.
struct Choose {
  static constexpr const char* name = "multinomial";
  static constexpr Cost cost = Cost::reduction;
  static constexpr Needs differentiable{};
  using Saved = SavesNothing;

  Tensor forward(const Tensor& weights, const Tensor& points, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
};

}  // namespace thimble::ops
