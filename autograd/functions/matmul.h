#pragma once
// Matrix products and convolutions. core/ops/matmul/matmul.h, core/ops/matmul/lora_linear.h and core/ops/conv/conv.h
// have the operators and their kept tensors.

#include <initializer_list>
#include <span>
#include <string_view>

#include <thimble/core/ops/conv/conv.h>
#include <thimble/core/ops/matmul/lora_linear.h>
#include <thimble/core/ops/matmul/matmul.h>

namespace thimble {

/// (..., M, K) x (..., K, N) -> (..., M, N). Leading axes broadcast, and permuted operands need no copy.
Tensor matmul(const Tensor& a, const Tensor& b);
/// alpha op(a) op(b).
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b, double alpha = 1);
/// Sums of products by axis names: `einsum("bij,bjk->bik", {a, b})`. Axes that the result lacks are summed; without
/// "->" the result has the letters that occur once, sorted. Composed, from the left: first sums axes that only one
/// operand has, then multiplies two operands by one matmul, on views where their layout permits. Throws ShapeError, and
/// ValueError for an equation that names an axis twice in one operand or does not fit the operands.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands);
/// act(x W^T + bias) with W (O, I), or (I, O) if `weight_is_in_out`; bias may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              kernels::Activation activation = kernels::Activation::none, bool weight_is_in_out = false);
/// x W^T + bias + scale (z A^T) B^T, A (r, I) and B (O, r); z defaults to x (core/ops/matmul/lora_linear.h).
Tensor lora_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& z, const Tensor& a,
                   const Tensor& b, double scale, bool weight_is_in_out = false);

struct Conv2dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};
/// x (N, H, W, C), weight (O, KH, KW, C / groups), bias (O) or undefined -> (N, OH, OW, O). permute(t, {0, 2, 3, 1})
/// converts images (N, C, H, W) and weights (O, I, KH, KW). A ShapeError points out the other layout if the sizes show
/// it; a weight with I = KH = KW has the same shape in both.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv2dOptions options = {});
/// x (N, L, C), weight (O, K, C / groups), bias (O) or undefined -> (N, OL, O): conv2d of images of one row, as views.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv2dOptions options = {});
/// The transpose of conv2d: x (N, H, W, I), weight (I, KH, KW, O / groups), bias (O) or undefined -> (N, OH, OW, O), OH
/// = (H - 1) stride - 2 padding + dilation (KH - 1) + 1 + output_padding; 0 <= output_padding < stride.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv2dOptions options = {},
                        std::int64_t output_padding = 0);
/// conv2d with kernels made of basis (r, O, KH, KW) and coefficients (C / groups, r); bias (O) or undefined.
Tensor shared_conv2d(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias = {},
                     Conv2dOptions options = {});

}  // namespace thimble
