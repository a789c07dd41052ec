#include <thimble/autograd/functions/recurrent.h>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/ops/recurrent.h>

namespace thimble {

LstmResult lstm(const Tensor& x, const Tensor& h, const Tensor& c, const RecurrentWeights& w, bool is_reverse) {
  const Tensor y = apply(ops::Lstm{is_reverse}, x, h, c, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh);
  return {slice(y, 0, 0, x.size(0)), select(y, 0, x.size(0))};
}

Tensor gru(const Tensor& x, const Tensor& h, const RecurrentWeights& w, bool is_reverse) {
  return apply(ops::Gru{is_reverse}, x, h, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh);
}

}  // namespace thimble
