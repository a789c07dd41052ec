#pragma once
// Softmax and its logarithm over one axis.

#include <thimble/core/ops/op.h>

namespace thimble::ops {

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

}  // namespace thimble::ops
