#include <thimble/autograd/functions/matmul.h>

#include <thimble/autograd/apply.h>

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

namespace matmul_functions_detail {

ops::Conv2d convolution(const Conv2dOptions& o) {
  return {o.stride, o.stride, o.padding, o.padding, o.dilation, o.dilation, o.groups};
}

}  // namespace matmul_functions_detail

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions o) {
  return apply(matmul_functions_detail::convolution(o), x, weight, bias);
}

Tensor shared_conv2d(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias,
                     Conv2dOptions o) {
  return apply(ops::SharedConv2d{matmul_functions_detail::convolution(o)}, x, basis, coefficients, bias);
}

}  // namespace thimble
