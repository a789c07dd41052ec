#pragma once
// Functions along one axis: running sums, products, sorted elements, and classes drawn from weights. The operators in
// core/ops/reduction/lines.h have the formulas and the tensors kept for backward. Throw ShapeError, DTypeError,
// DeviceError, ValueError.

#include <thimble/core/ops/reduction/reduce.h>
#include <thimble/core/random/random.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Sums of the elements up to each one; integers and bool give i64. Keeps nothing.
Tensor cumsum(const Tensor& x, int axis = -1);
/// The product over one axis, a list of axes, or all (the default). Keeps x, and for several axes the products over the
/// later ones.
Tensor prod(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);

/// Elements in sorted order and their places along the axis, i32, which gather() and embedding() take. The gradient of
/// `values` goes to the elements' places; only the indices are kept.
struct Sorted {
  Tensor values, indices;
};
/// Equal elements stay in their order; NaN is larger than all.
Sorted sort(const Tensor& x, int axis = -1, bool is_descending = false);
Tensor argsort(const Tensor& x, int axis = -1, bool is_descending = false);
/// The first `count` of them: the largest, or the smallest.
Sorted topk(const Tensor& x, std::int64_t count, int axis = -1, bool takes_largest = true);

/// `count` classes (..., S), i64, for each row of weights (..., K), which are at least 0 and need not sum to 1: drawn
/// with replacement, or each class at most once (Efraimidis and Spirakis 2006: the smallest of the exponential waiting
/// times e / weight). Computed in f64, a function of only the weights and the site. No gradient. Throws ValueError, on
/// a CPU, for rows that are no distribution or have fewer than `count` classes to draw.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool with_replacement = false,
                   const RandomSite& site = next_random_site());

}  // namespace thimble
