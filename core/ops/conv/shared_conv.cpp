#include <thimble/core/ops/conv/shared_conv.h>

#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/ops/matmul/product.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>

namespace thimble::ops {
namespace shared_conv_detail {

// (r, O, KH, KW) -> (r, O KH KW).
Tensor as_rows(const Tensor& basis) {
  const Tensor dense = contiguous(basis);
  return view::reshape(dense, {dense.size(0), dense.size(1) * dense.size(2) * dense.size(3)});
}

// (O, KH, KW, C / groups).
Shape kernel_shape(const Tensor& basis, const Tensor& coefficients) {
  return {basis.size(1), basis.size(2), basis.size(3), coefficients.size(0)};
}

Tensor expanded_kernel(const Tensor& basis, const Tensor& coefficients) {
  const Tensor rows = as_rows(basis);
  const Tensor kernel = Tensor::empty({rows.size(1), coefficients.size(0)}, basis.dtype(), basis.device());
  matmul_into({SharedConv2d::name, view::transpose(rows), view::transpose(coefficients), kernel, {}, {}});
  return view::reshape(kernel, kernel_shape(basis, coefficients));
}

void check(const SharedConv2d& op, const Tensor& x, const Tensor& basis, const Tensor& coefficients) {
  const std::string operation = op.name;
  const std::string sides =
      "input " + describe(x) + ", basis " + describe(basis) + ", coefficients " + describe(coefficients);
  if (x.rank() != 4 || basis.rank() != 4 || coefficients.rank() != 2 || basis.size(0) != coefficients.size(1)) {
    throw ShapeError(operation + ": " + sides + "; expected (N, H, W, C), (r, O, KH, KW) and (C / groups, r)");
  }
  if (basis.size(0) == 0) throw ShapeError(operation + ": " + sides + "; expected a basis of at least one kernel");
  if (!is_floating(x.dtype()) || basis.dtype() != x.dtype() || coefficients.dtype() != x.dtype()) {
    throw DTypeError(operation + ": " + sides + "; expected one floating dtype");
  }
  if (basis.device() != x.device() || coefficients.device() != x.device()) {
    throw DeviceError(operation + ": operands on different devices, " + sides);
  }
}

}  // namespace shared_conv_detail

Tensor SharedConv2d::forward(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias,
                             Needs needs, Saved& saved) const {
  shared_conv_detail::check(*this, x, basis, coefficients);
  Conv2d::Saved nothing;
  const Tensor y = conv.forward(x, shared_conv_detail::expanded_kernel(basis, coefficients), bias, Needs(), nothing);
  const bool needs_kernel = needs[1] || needs[2];
  if (needs_kernel) saved.x = x;
  if (needs[0] || needs_kernel) saved.basis = basis, saved.coefficients = coefficients;
  saved.x_shape = x.shape();
  return y;
}

Gradients SharedConv2d::backward(Saved saved, Tensor dy, Needs needs) const {
  constexpr Needs of_x(1), of_weight(2), of_bias(4);
  dy = contiguous(dy);  // (N, OH, OW, O)
  Tensor dx, dbasis, dcoefficients, dbias;
  if (needs[3]) dbias = conv.backward({{}, {}, saved.x_shape, {}}, dy, of_bias)[2];
  const Tensor &basis = saved.basis, &coefficients = saved.coefficients;
  if (needs[1] || needs[2]) {
    const Shape shape = shared_conv_detail::kernel_shape(basis, coefficients);
    Tensor dkernel = conv.backward({std::exchange(saved.x, Tensor()), {}, saved.x_shape, shape}, dy, of_weight)[1];
    dkernel = view::reshape(dkernel, {shape[0] * shape[1] * shape[2], shape[3]});  // (O KH KW, C / groups)
    const Tensor transposed = view::transpose(dkernel);
    if (needs[1]) {
      dbasis = Tensor::empty(basis.shape(), dy.dtype(), dy.device());
      const Tensor rows = shared_conv_detail::as_rows(dbasis);
      matmul_into({name, view::transpose(coefficients), transposed, rows, {}, {}});
    }
    if (needs[2]) {
      dcoefficients = Tensor::empty(coefficients.shape(), dy.dtype(), dy.device());
      matmul_into({name, transposed, view::transpose(shared_conv_detail::as_rows(basis)), dcoefficients, {}, {}});
    }
  }
  if (needs[0]) {
    const Tensor kernel = shared_conv_detail::expanded_kernel(basis, coefficients);
    dx = conv.backward({{}, kernel, saved.x_shape, kernel.shape()}, dy, of_x)[0];
  }
  return {dx, dbasis, dcoefficients, dbias};
}

double SharedConv2d::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  const Tensor &basis = inputs[1], &coefficients = inputs[2];
  const auto taps = static_cast<double>(basis.size(2) * basis.size(3) * coefficients.size(0));
  return static_cast<double>(output.elements()) * taps +
         static_cast<double>(basis.elements()) * static_cast<double>(coefficients.size(0));
}

}  // namespace thimble::ops
