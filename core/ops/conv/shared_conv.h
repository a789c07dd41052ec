#pragma once
// Convolution whose kernels are combinations of a few shared ones.

#include <thimble/core/ops/conv/conv.h>
#include <thimble/core/ops/op.h>

namespace thimble::ops {

/// y = conv(x, W) + bias with W[o, kh, kw, i] = sum over j of coefficients[i, j] basis[j, o, kh, kw]: the kernel from
/// input i to output o is a combination of r kernels that all inputs share. x (N, H, W, C), basis (r, O, KH, KW),
/// coefficients (C / groups, r), bias (O) or undefined -> y (N, OH, OW, O); conv as in Conv2d. The weights are r O KH
/// KW + C r / groups numbers in place of O KH KW C / groups. Several layers may share one basis: its gradient is the
/// sum of theirs.
///
/// W is a temporary of forward, rounded to the dtype of the operands, and recomputed in backward; at most one of W and
/// dW exists at a time. With D = basis as (r, O KH KW) and W as (O KH KW, C / groups): W = D^T coefficients^T, dbasis =
/// (dW coefficients)^T, dcoefficients = (D dW)^T.
///
/// Keeps basis and coefficients by reference, and x for their gradients; the bias's gradient keeps none of the three.
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
