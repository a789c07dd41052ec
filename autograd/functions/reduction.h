#pragma once
// Reductions with gradients, over one axis, a list of axes, or all (the default): `sum(x)`, `mean(x, -1)`, `variance(x,
// {0, 1}, 1, true)`. With keep_axes the reduced axes stay with size 1. core/ops/reduction/reduction.h has formulas,
// empty cases, and the tensors kept for backward. All throw ShapeError for an axis out of range or named twice.

#include <thimble/core/ops/random.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Integers and bool give i64.
Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Throws DTypeError unless x is floating.
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Divides by n - correction; correction is 0 or 1. Throws ValueError, DTypeError unless x is floating.
Tensor variance(const Tensor& x, const Axes& axes = {}, int correction = 1, bool keep_axes = false);
/// Deleted because in `variance(x, -1, true)` the bool would be the correction.
Tensor variance(const Tensor& x, const Axes& axes, bool correction, bool keep_axes = false) = delete;
/// NaN if any element is. Throws ShapeError for empty reductions.
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Index (i64) of the first extreme in row-major order of the reduced axes; no gradient.
Tensor argmax(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
Tensor argmin(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// (sum |x|^p)^(1/p); the largest |x| for p = infinity. p = 2 is one operator, which sums in f64 and keeps x and its
/// result; other norms are composed. Throws ValueError unless p > 0, DTypeError unless x is floating.
Tensor norm(const Tensor& x, double p = 2, const Axes& axes = {}, bool keep_axes = false);
/// log sum e^x. Throws DTypeError unless x is floating.
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);

// ---- Softmax and its logarithm. core/ops/reduction/reduction.h has the formulas and the tensors kept for backward.

/// exp(scale x) / sum exp(scale x) along an axis. Keeps its result.
Tensor softmax(const Tensor& x, int axis = -1, double scale = 1);

/// Softmax of attention scores (..., T, S) over the last axis; query t sees only the keys s <= t + (S - T). S >= T.
Tensor causal_softmax(const Tensor& scores, double scale = 1);

/// x - log sum exp(x) along an axis. Keeps its result.
Tensor log_softmax(const Tensor& x, int axis = -1);

// ---- Functions along one axis: running sums, products, sorted elements, and classes drawn from weights.
// core/ops/reduction/reduction.h has the formulas and the tensors kept for backward. Throw ShapeError, DTypeError,
// DeviceError, ValueError.

/// Running sums; integers and bool give i64. Keeps nothing.
Tensor cumsum(const Tensor& x, int axis = -1);
/// The product over one axis, a list of axes, or all (the default). Keeps x; for several axes (except all axes of a
/// dense tensor) also the partial products.
Tensor prod(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);

/// Elements in sorted order, and their places along the axis in i32, as gather() and embedding() read them. The
/// gradient of `values` goes back to the elements' places; only the indices are kept.
struct Sorted {
  Tensor values, indices;
};
/// The sort is stable, and NaN is larger than all numbers.
Sorted sort(const Tensor& x, int axis = -1, bool is_descending = false);
Tensor argsort(const Tensor& x, int axis = -1, bool is_descending = false);
/// The `count` largest elements, in descending order, or the smallest, ascending.
Sorted topk(const Tensor& x, std::int64_t count, int axis = -1, bool takes_largest = true);

/// Draws `count` classes (..., S), i64, from each row of weights (..., K), which are at least 0 and need not sum to 1:
/// with replacement, or each class at most once (Efraimidis and Spirakis 2006: the smallest of the exponential waiting
/// times e / weight). Computed in f64, a function of only the weights and the site. No gradient. On a CPU, throws
/// ValueError for rows that are no distribution or have fewer than `count` classes with positive weight.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool with_replacement = false,
                   const RandomSite& site = next_random_site());

}  // namespace thimble
