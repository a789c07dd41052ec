#include <thimble/core/ops/layout/view.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/reduce.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {

Tensor Reshape::forward(const Tensor& x, Needs, Saved& saved) const {
  saved.from = x.shape();
  const Shape to = view::resolve_shape(name, shape, x.elements());
  return view::reshape(view::can_reshape(x, to) ? x : contiguous(x), to);
}

Gradients Reshape::backward(Saved saved, Tensor dy, Needs) const {
  return {view::reshape(view::can_reshape(dy, saved.from) ? dy : contiguous(dy), saved.from)};
}

Tensor Permute::forward(const Tensor& x, Needs, Saved&) const {
  return view::permute(x, std::span<const int>(order.data(), static_cast<std::size_t>(x.rank())));
}

Gradients Permute::backward(Saved, Tensor dy, Needs) const {
  std::array<int, max_rank> inverse{};
  for (int i = 0; i < dy.rank(); ++i) {
    const int axis = normalize_axis(name, order[static_cast<std::size_t>(i)], dy.rank());
    inverse[static_cast<std::size_t>(axis)] = i;
  }
  return {view::permute(dy, std::span<const int>(inverse.data(), static_cast<std::size_t>(dy.rank())))};
}

Tensor Slice::forward(const Tensor& x, Needs, Saved& saved) const {
  saved.from = x.shape();
  return view::slice(x, axis, begin, end, step);
}

Gradients Slice::backward(Saved saved, Tensor dy, Needs) const {
  const Tensor dx = zeros(saved.from, dy.dtype(), dy.device());
  copy_into(view::slice(dx, axis, begin, end, step), dy);
  return {dx};
}

Tensor Expand::forward(const Tensor& x, Needs, Saved& saved) const {
  saved.from = x.shape();
  return view::expand(x, shape);
}

Gradients Expand::backward(Saved saved, Tensor dy, Needs) const { return {sum_to(dy, saved.from)}; }

Tensor Contiguous::forward(const Tensor& x, Needs, Saved&) const { return contiguous(x); }

Gradients Contiguous::backward(Saved, Tensor dy, Needs) const { return {dy}; }

Tensor Cast::forward(const Tensor& x, Needs needs, Saved& saved) const {
  if (needs.any() && !is_floating(dtype)) {
    throw DTypeError("cast: " + describe(x) + " needs a gradient, which " + std::string(to_string(dtype)) +
                     " cannot carry; detach it first");
  }
  saved.from = x.dtype();
  return to_dtype(x, dtype);
}

Gradients Cast::backward(Saved saved, Tensor dy, Needs) const { return {to_dtype(dy, saved.from)}; }

}  // namespace thimble::ops
