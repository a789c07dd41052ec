#include <thimble/autograd/functions/reduction.h>

#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/reduction/reduction.h>
#include <thimble/core/tensor/view.h>

namespace thimble {
namespace {

AxisMask mask_of(const char* name, const Tensor& x, const Axes& axes) {
  return axis_mask(name, axes.list(), view::defined(name, x).rank());
}

template <class Op>
Tensor run(const Tensor& x, const Axes& axes, bool keep_axes) {
  return apply(Op{mask_of(Op::name, x, axes), keep_axes}, x);
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::Sum>(x, axes, keep_axes); }

Tensor mean(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::Mean>(x, axes, keep_axes); }

Tensor variance(const Tensor& x, const Axes& axes, int correction, bool keep_axes) {
  return apply(ops::Variance{mask_of("variance", x, axes), keep_axes, correction}, x);
}

Tensor max(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::Max>(x, axes, keep_axes); }

Tensor min(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::Min>(x, axes, keep_axes); }

Tensor argmax(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::ArgMax>(x, axes, keep_axes); }

Tensor argmin(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::ArgMin>(x, axes, keep_axes); }

Tensor norm(const Tensor& x, double p, const Axes& axes, bool keep_axes) {
  if (!(p > 0)) throw ValueError("norm: p is " + std::to_string(p) + ", expected above 0");
  if (!is_floating(x.dtype())) throw DTypeError("norm: " + describe(x) + " is not floating");
  mask_of("norm", x, axes);  // throws
  if (p == 2) return run<ops::Norm>(x, axes, keep_axes);
  if (p == HUGE_VAL) return max(abs(x), axes, keep_axes);
  if (p == 1) return sum(abs(x), axes, keep_axes);
  const Tensor size = abs(x);
  if (x.elements() == 0) return pow(sum(pow(size, p), axes, keep_axes), 1 / p);
  // |x| = s |x / s| for any constant s: with the largest element as s, no power overflows or vanishes. If all are zero,
  // s is 1 and the sum gets 1 more, where the root has a finite slope.
  const Tensor largest = max(size.detach(), axes, true), zero = zeros({}, x.dtype(), x.device());
  const Tensor one = full({}, 1, x.dtype(), x.device()), infinity = full({}, HUGE_VAL, x.dtype(), x.device());
  const Tensor scale = where(greater(largest, zero), where(less(largest, infinity), largest, one), one);
  const Tensor added = where(equal(largest, zero), one, zero);
  const Tensor y = pow(sum(pow(size / scale, p), axes, true) + added, 1 / p) * (scale - added);
  return keep_axes ? y : reshape(y, reduced_shape(x.shape(), axis_mask("norm", axes.list(), x.rank()), false));
}

Tensor logsumexp(const Tensor& x, const Axes& axes, bool keep_axes) { return run<ops::LogSumExp>(x, axes, keep_axes); }

Tensor softmax(const Tensor& x, int axis, double scale) { return apply(ops::Softmax{axis, scale, false}, x); }

Tensor causal_softmax(const Tensor& scores, double scale) { return apply(ops::Softmax{-1, scale, true}, scores); }

Tensor log_softmax(const Tensor& x, int axis) { return apply(ops::LogSoftmax{axis}, x); }

Tensor cumsum(const Tensor& x, int axis) { return apply(ops::CumSum{axis}, x); }

Tensor prod(const Tensor& x, const Axes& axes, bool keep_axes) {
  const AxisMask mask = mask_of("prod", x, axes);
  if (mask == 0) return prod(reshape(x, {1}), 0);  // a scalar
  Tensor y = x;
  // Reduce all axes of a dense tensor as one.
  if (mask == (AxisMask{1} << x.rank()) - 1 && x.is_contiguous()) {
    y = apply(ops::Prod{0, false}, reshape(x, {x.elements()}));
    return keep_axes ? reshape(y, reduced_shape(x.shape(), mask, true)) : y;
  }
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    if ((mask >> axis) & 1u) y = apply(ops::Prod{axis, keep_axes}, y);
  }
  return y;
}

namespace {

Sorted first_sorted(const char* name, const Tensor& x, std::int64_t count, int axis, bool is_descending) {
  const int along = view::axis_of(name, axis, x);
  const Tensor indices = apply(ops::ArgSort{along, count, is_descending, name}, x);
  return {gather(x, along, indices), indices};
}

}  // namespace

Sorted sort(const Tensor& x, int axis, bool is_descending) {
  const int along = view::axis_of("sort", axis, x);
  return first_sorted("sort", x, x.shape()[along], along, is_descending);
}

Tensor argsort(const Tensor& x, int axis, bool is_descending) {
  const int along = view::axis_of("argsort", axis, x);
  return apply(ops::ArgSort{along, x.shape()[along], is_descending}, x);
}

Sorted topk(const Tensor& x, std::int64_t count, int axis, bool takes_largest) {
  return first_sorted("topk", x, count, axis, takes_largest);
}

Tensor multinomial(const Tensor& weights, std::int64_t count, bool with_replacement, const RandomSite& site) {
  const auto is = [&] { return "multinomial: " + std::to_string(count) + " classes of weights " + describe(weights); };
  if (weights.rank() < 1 || weights.shape().back() < 1 || count < 0) throw ShapeError(is() + ", expected (..., K)");
  if (!is_floating(weights.dtype())) throw DTypeError(is() + ", expected a floating dtype");
  if (!with_replacement && count > weights.shape().back()) throw ValueError(is() + " without replacement");
  const Tensor w = to_dtype(weights.detach(), DType::f64);
  Shape shape = w.shape();
  shape[shape.rank() - 1] = with_replacement ? count : 0;
  if (with_replacement) return apply(ops::Choose{}, w, rand(shape, DType::f64, w.device(), site));
  apply(ops::Choose{}, w, Tensor::empty(shape, DType::f64, w.device()));  // only checks w
  if (w.device().is_cpu()) {
    const Tensor above = sum(greater(w, zeros({}, DType::f64, w.device())), -1);  // allocated on a dry device too
    for (const std::int64_t some : w.device().is_dry ? std::vector<std::int64_t>() : to_host<std::int64_t>(above)) {
      if (some < count) throw ValueError(is() + ", of which a row has " + std::to_string(some) + " above 0");
    }
  }
  const Tensor waits = neg(log(1.0 - rand(w.shape(), DType::f64, w.device(), site))) / w;
  return to_dtype(apply(ops::ArgSort{-1, count, false}, waits), DType::i64);
}

}  // namespace thimble
