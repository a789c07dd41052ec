#pragma once
// A linear layer with FP8 operands.

#include <cstdint>

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/op.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble::ops {

/// y = act(s x8 W8 + bias): x (..., I) -> (..., O) in x's dtype (f32, f16, bf16), with x8 and W8 the FP8 values of x
/// and the weight (core/ops/quant/fp8.h) and s the product of their scales. The weight is (O, I), or (I, O) with
/// `weight_is_in_out`; bias (O), or undefined; both in x's dtype. `scales` are the committed ones of delayed scaling,
/// f32 (3), or undefined.
///
/// Gradients: dx = s dy8 W8^T, dW = s x8^T dy8, dbias = the sum of dy unrounded. dy is rounded once for both, W a
/// second time, with the scale of forward.
///
/// Every FP8 value is exact in bf16, so products have bf16 operands with sums in f32 (core/kernels/cpu/matmul/gemm.h);
/// the scales multiply the complete sums. A CUDA device multiplies codes with per-tensor scales directly
/// (core/ops/matmul/fp8_product.h); with block scales it multiplies the codes for y and dx where it has units for such
/// scales (fp8_blocks_on_units), and never for dW, a sum over rows with different scales.
///
/// Keeps x's codes, 1 byte a value, with their scale (4 bytes, or a byte per block of 128), the weight, and for the
/// activation the tensors that Linear keeps. Decoded operands are workspace: W whole, of x at most about 4 MiB at a
/// time (64 rows or 128 columns at least; 32 MiB on a CUDA device); dy is rounded in place. Products of codes use
/// workspace for the codes of W and dy, 1 byte a value, transposed where the sum is over their other side, dy both
/// ways; of x at most about 32 MiB of codes are transposed at a time. With block scales dy's codes live beside dy until
/// dx is computed.
///
/// Throws ShapeError, DTypeError, DeviceError.
struct Fp8Linear {
  static constexpr const char* name = "fp8_linear";
  static constexpr Cost cost = Cost::matmul;
  struct Saved {
    Tensor x, x_scale, weight, scales, activation;
    Shape x_shape;
  };
  Fp8Use use = {};
  kernels::Activation activation = kernels::Activation::none;
  bool weight_is_in_out = false;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& scales, Needs needs,
                 Saved& saved) const;
  Gradients backward(Saved saved, Tensor dy, Needs needs) const;
  double multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const;
};

}  // namespace thimble::ops
