#include <thimble/autograd/functions/softmax.h>

#include <thimble/autograd/apply.h>
#include <thimble/core/ops/reduction/softmax.h>

namespace thimble {

Tensor softmax(const Tensor& x, int axis, double scale) { return apply(ops::Softmax{axis, scale, false}, x); }

Tensor causal_softmax(const Tensor& scores, double scale) { return apply(ops::Softmax{-1, scale, true}, scores); }

Tensor log_softmax(const Tensor& x, int axis) { return apply(ops::LogSoftmax{axis}, x); }

}  // namespace thimble
