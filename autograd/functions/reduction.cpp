#include <thimble/autograd/functions/reduction.h>

#include <thimble/autograd/apply.h>
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

Tensor logsumexp(const Tensor& x, const Axes& axes, bool keep_axes) {
  return reduction_functions_detail::run<ops::LogSumExp>(x, axes, keep_axes);
}

}  // namespace thimble
