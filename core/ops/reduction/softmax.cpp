#include <thimble/core/ops/reduction/softmax.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/softmax.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/reuse.h>

namespace thimble::ops {
namespace softmax_detail {

struct Form {
  const char* name;
  int axis;
  double scale = 1;
  bool is_log = false;
  bool is_causal = false;
};

Shape without_axis(Shape sizes, int axis) {
  sizes.erase(axis);
  return sizes;
}

int checked_axis(const Form& form, const Tensor& x) {
  if (!is_floating(x.dtype())) throw DTypeError(std::string(form.name) + ": " + describe(x) + " is not floating");
  const int axis = normalize_axis(form.name, form.axis, x.rank());
  if (!form.is_causal) return axis;
  if (x.rank() < 2 || axis != x.rank() - 1 || x.shape()[axis] < x.shape()[axis - 1]) {
    throw ShapeError(std::string(form.name) +
                     ": causal scores must be (..., T, S) with S >= T and the last axis reduced, got " + describe(x) +
                     " and axis " + std::to_string(form.axis));
  }
  return axis;
}

Tensor forward(const Form& form, const Tensor& x) {
  const int axis = checked_axis(form, x);
  const Tensor y = Tensor::empty_like(x);  // as x
  if (y.elements() == 0) return y;
  launch(x.device(), [&](const Addresses& at) {
    kernels::SoftmaxArgs args;
    args.outer = without_axis(x.shape(), axis);
    args.length = x.shape()[axis];
    args.x = {at(x), x.dtype(), without_axis(x.strides(), axis), x.strides()[axis]};
    args.y = {at(y), y.dtype(), without_axis(y.strides(), axis), y.strides()[axis]};
    args.scale = form.scale;
    args.is_log = form.is_log;
    args.causal_queries = form.is_causal ? x.shape()[axis - 1] : 0;
    kernels::softmax_kernels(x.device()).forward(args);
  });
  return y;
}

// Writes in the buffer of dy or y, whichever is free.
Tensor backward(const Form& form, const Tensor& y, const Tensor& dy) {
  const int axis = normalize_axis(form.name, form.axis, y.rank());
  const Tensor dx = is_reusable(dy) ? dy : reused_or_new(y);  // as x
  if (y.elements() == 0) return dx;
  launch(y.device(), [&](const Addresses& at) {
    kernels::SoftmaxBackwardArgs args;
    args.outer = without_axis(y.shape(), axis);
    args.length = y.shape()[axis];
    args.y = {at(y), y.dtype(), without_axis(y.strides(), axis), y.strides()[axis]};
    args.dy = {at(dy), dy.dtype(), without_axis(dy.strides(), axis), dy.strides()[axis]};
    args.dx = {at(dx), dx.dtype(), without_axis(dx.strides(), axis), dx.strides()[axis]};
    args.scale = form.scale;
    args.is_log = form.is_log;
    args.causal_queries = form.is_causal ? y.shape()[axis - 1] : 0;
    kernels::softmax_kernels(y.device()).backward(args);
  });
  return dx;
}

}  // namespace softmax_detail

Tensor Softmax::forward(const Tensor& x, Needs needs, Saved& saved) const {
  const Tensor y = softmax_detail::forward({name, axis, scale, false, is_causal}, x);
  if (needs[0]) saved.y = y;
  return y;
}

Gradients Softmax::backward(Saved saved, Tensor dy, Needs) const {
  return {softmax_detail::backward({name, axis, scale, false, is_causal}, saved.y, dy)};
}

Tensor LogSoftmax::forward(const Tensor& x, Needs needs, Saved& saved) const {
  const Tensor y = softmax_detail::forward({name, axis, 1, true, false}, x);
  if (needs[0]) saved.y = y;
  return y;
}

Gradients LogSoftmax::backward(Saved saved, Tensor dy, Needs) const {
  return {softmax_detail::backward({name, axis, 1, true, false}, saved.y, dy)};
}

}  // namespace thimble::ops
