#pragma once
// Reductions over any set of axes, with or without size-1 axes left in their place. `axes` is a mask
// (core/ops/reduction/reduce.h). core/kernels/reduce.h fixes the order of accumulation: a function of only the
// reduction's length.

#include <thimble/core/ops/op.h>
#include <thimble/core/ops/reduction/reduce.h>

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

/// y = sum (x - mean)^2 / max(0, n - correction), in two passes; NaN when that is 0 / 0. dx = 2 (x - mean) dy / (n -
/// correction). Keeps x, and the mean in f32 (f64 for f64). Throws DTypeError unless x is floating.
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

/// y = sqrt(sum x^2); 0 for no elements. dx = x / y dy, and 0 where y = 0. Keeps x and y by reference. Throws
/// DTypeError unless x is floating.
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

}  // namespace thimble::ops
