#include <thimble/autograd/functions/matmul.h>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>

namespace thimble {

Tensor matmul(const Tensor& a, const Tensor& b) { return apply<ops::Matmul>(a, b); }

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b, double alpha) {
  return apply(ops::Matmul{transpose_a, transpose_b, alpha}, a, b);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, kernels::Activation activation,
              bool weight_is_in_out) {
  return apply(ops::Linear{activation, weight_is_in_out}, x, weight, bias);
}

Tensor lora_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z, const Tensor& a,
                   const Tensor& b, double scale, bool weight_is_in_out) {
  return apply(ops::LoraLinear{scale, weight_is_in_out}, x, weight, bias, z, a, b);
}

namespace {

ops::Conv2d convolution(const Conv2dOptions& o) {
  return {o.stride, o.stride, o.padding, o.padding, o.dilation, o.dilation, o.groups};
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o) {
  return apply(convolution(o), x, weight, bias);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o) {
  if (x.rank() != 3 || weight.rank() != 3) {
    throw ShapeError("conv1d: input " + describe(x) + ", weight " + describe(weight) +
                     "; expected (N, L, C) and (O, K, C / groups)");
  }
  const ops::Conv2d op{1, o.stride, 0, o.padding, 1, o.dilation, o.groups};
  return squeeze(apply(op, unsqueeze(x, 1), unsqueeze(weight, 1), bias), 1);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o,
                        std::int64_t output_padding) {
  const ops::ConvTranspose2d op{convolution(o), output_padding, output_padding};
  return apply(op, x, weight, bias);
}

Tensor shared_conv2d(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias,
                     Conv2dOptions o) {
  return apply(ops::SharedConv2d{convolution(o)}, x, basis, coefficients, bias);
}

}  // namespace thimble
