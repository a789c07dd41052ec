#pragma once
// Reductions over any set of axes, with or without size-1 axes left in their place. `axes` is a mask
// (core/ops/reduction/reduce.h). The order of accumulation is that of core/kernels/reduce.h: a function of the
// reduction's length alone.

#include <thimble/core/ops/op.h>
#include <thimble/core/ops/reduction/reduce.h>

namespace thimble::ops {

/// y = sum x; of nothing 0. Any dtype; integers and bool give i64. dx = dy, repeated by strides without a copy. Keeps
/// nothing.
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

/// y = (sum x) / n, rounded once; of nothing NaN. dx = dy / n, repeated by strides. Keeps nothing. Throws DTypeError
/// unless x is floating.
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

/// y = the largest (or smallest) element; NaN where there is one. Any dtype. The gradient goes to the first of equal
/// elements. Keeps its place among the reduced elements, in the smallest of u8, i32, i64 that holds it, and not x.
/// Throws ShapeError when there is nothing to choose from.
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

/// y = the place (i64) of the first largest (or smallest) element, or of the first NaN, counted in row-major order of
/// the reduced axes. No gradient. Throws ShapeError when there is nothing to choose from.
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

/// y = max x + log sum e^(x - max x); of nothing -infinity. dx = e^(x - y) dy. Keeps x, and y: by reference in f32 and
/// f64, as an extra in f32 for narrower types, because e^(x - y) takes y's absolute error. Throws DTypeError unless x
/// is floating.
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
