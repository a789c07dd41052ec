#include <thimble/autograd/functions/reduction.h>

#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/reduction/reduction.h>

namespace thimble {
namespace reduction_functions_detail {

template <class Op>
Tensor run(const Tensor& x, const Axes& axes, bool keep_axes) {
  return apply(Op{axis_mask(Op::name, axes.list(), x.rank()), keep_axes}, x);
}

}  // namespace reduction_functions_detail

Tensor sum(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::Sum>(x, axes, keep_axes);
}

Tensor mean(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::Mean>(x, axes, keep_axes);
}

Tensor variance(const Tensor& x, const Axes& axes, int correction, bool keep_axes) {
  return apply(ops::Variance{axis_mask("variance", axes.list(), x.rank()), keep_axes, correction}, x);
}

Tensor max(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::Max>(x, axes, keep_axes);
}

Tensor min(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::Min>(x, axes, keep_axes);
}

Tensor argmax(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::ArgMax>(x, axes, keep_axes);
}

Tensor argmin(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::ArgMin>(x, axes, keep_axes);
}

Tensor norm(const Tensor& x, double p, const Axes& axes, bool keep_axes) {
  if (!(p > 0)) throw ValueError("norm: p is " + std::to_string(p) + ", expected above 0");
  if (p == 2) return reduction_functions_detail::run<ops::Norm>(x, axes, keep_axes);
  if (p == HUGE_VAL) return max(abs(x), axes, keep_axes);
  if (p == 1) return sum(abs(x), axes, keep_axes);
  return pow(sum(pow(abs(x), p), axes, keep_axes), 1 / p);
}

Tensor logsumexp(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::LogSumExp>(x, axes, keep_axes);
}

}  // namespace thimble
