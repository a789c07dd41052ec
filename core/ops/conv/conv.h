#pragma once
// Two-dimensional convolution, and its transpose.

#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// Throws ValueError unless stride, dilation and groups are at least 1, padding at least 0, and all at most 2^30.
void check_conv_numbers(const char* operation, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                        std::int64_t groups);

/// x (N, H, W, C), weight (O, KH, KW, C / groups), bias (O) or undefined -> y (N, OH, OW, O), with OH = (H + 2 pad_h -
/// dilation_h (KH - 1) - 1) / stride_h + 1. kernels::ConvShape has the formula. Keeps x for the weight's gradient and
/// the weight for x's. No im2col: panels are packed directly from the image.
struct Conv2d {
  static constexpr const char* name = "conv2d";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, weight;
    Shape x_shape, weight_shape;
  };
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

/// The transpose of a convolution `conv` from (N, OH, OW, O) to (N, H, W, I), with a bias: x (N, H, W, I), weight
/// (I, KH, KW, O / groups), bias (O) or undefined -> y (N, OH, OW, O), OH = (H - 1) stride_h - 2 pad_h + dilation_h
/// (KH - 1) + 1 + extra_h, 0 <= extra_h < stride_h. Forward runs the kernels of the convolution's input gradient, dx
/// the kernels of its forward. Keeps x for the weight's gradient and the weight for x's.
struct ConvTranspose2d {
  static constexpr const char* name = "conv_transpose2d";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, weight;
    Shape x_shape, weight_shape;
  };
  Conv2d conv;
  std::int64_t extra_h = 0, extra_w = 0;  ///< additional rows and columns at the end

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, Needs needs, Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

// ---- Convolution with kernels that are combinations of a few shared ones.

/// y = conv(x, W) + bias with W[o, kh, kw, i] = sum over j of coefficients[i, j] basis[j, o, kh, kw]: the kernel from
/// input i to output o is a combination of r kernels that all inputs share. x (N, H, W, C), basis (r, O, KH, KW),
/// coefficients (C / groups, r), bias (O) or undefined -> y (N, OH, OW, O); conv as in Conv2d. The weights are r O KH
/// KW + C r / groups numbers instead of O KH KW C / groups. Layers may share a basis, whose gradients then add up.
///
/// W is a temporary of forward, rounded to the operands' dtype, and recomputed in backward; W and dW never exist at the
/// same time. With D = basis as (r, O KH KW) and W as (O KH KW, C / groups): W = D^T coefficients^T, dbasis = (dW
/// coefficients)^T, dcoefficients = (D dW)^T.
///
/// Keeps basis and coefficients by reference, and x for their gradients; the bias's gradient needs none of the three.
/// Throws ShapeError, DTypeError, DeviceError, ValueError.
struct SharedConv2d {
  static constexpr const char* name = "shared_conv2d";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, basis, coefficients;
    Shape x_shape;
  };
  Conv2d conv;

  Tensor forward(const Tensor& x, const Tensor& basis, const Tensor& coefficients, const Tensor& bias, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  /// Includes making W.
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
