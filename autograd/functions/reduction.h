#pragma once
// Reductions with gradients, over one axis, a list of axes, or all (the default): `sum(x)`, `mean(x, -1)`, `variance(x,
// {0, 1}, 1, true)`. With keep_axes the reduced axes stay with size 1. The operators in core/ops/reduction/reduction.h
// have formulas, empty cases, and the tensors kept for backward. All throw ShapeError for an axis out of range or named
// twice.

#include <thimble/core/ops/reduction/reduce.h>

namespace thimble {

/// Integers and bool give i64.
Tensor sum(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Throws DTypeError unless x is floating.
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Divides by n - correction; correction is 0 or 1. Throws ValueError, DTypeError unless x is floating.
Tensor variance(const Tensor& x, const Axes& axes = {}, int correction = 1, bool keep_axes = false);
/// `variance(x, -1, true)`: a bool is no correction.
Tensor variance(const Tensor& x, const Axes& axes, bool correction, bool keep_axes = false) = delete;
/// NaN wins. Throws ShapeError for empty reductions.
Tensor max(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// Index (i64) of the first extreme in row-major order of the reduced axes; no gradient.
Tensor argmax(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
Tensor argmin(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);
/// (sum |x|^p)^(1/p); the largest |x| for p = infinity. p = 2 is one operator, which keeps x and its result; the others
/// are composed. Throws ValueError unless p > 0, DTypeError unless x is floating.
Tensor norm(const Tensor& x, double p = 2, const Axes& axes = {}, bool keep_axes = false);
/// log sum e^x. Throws DTypeError unless x is floating.
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keep_axes = false);

}  // namespace thimble
