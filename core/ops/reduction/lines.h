#pragma once
// Operators along one axis: running sums, products, sorting. core/kernels/lines.h has their kernels.

#include <thimble/core/ops/op.h>

namespace thimble::ops {

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
