#pragma once
// Linear layers with FP8 operands. core/ops/quant/fp8_linear.h has the operator and its kept tensors,
// core/ops/quant/fp8.h the scales and their state.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/quant/fp8.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// act(x W^T + bias) of FP8 operands, with W (O, I), or (I, O) if `weight_is_in_out`; bias may be undefined. With a
/// `state` (delayed scaling) it uses the committed scales, and a call that `records` updates the state in forward and
/// backward, staged in the step's Transaction if there is one. Throws ValueError for delayed scaling without a state.
Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Fp8Format& format,
                  const Fp8State& state = {}, bool records = true,
                  kernels::Activation activation = kernels::Activation::none, bool weight_is_in_out = false);

// ---- Weights of linear layers in Q8_0 blocks (core/kernels/quant_codes.h): 32 numbers in 34 bytes. The operator is in
// core/ops/matmul/lora_linear.h.

/// W (O, I), f32, any strides -> its Q8_0 blocks (O, 34 I / 32), u8, booked as a parameter. Not recorded. Throws
/// ShapeError unless 32 divides I, DTypeError, DeviceError, and ValueError for a value that is not finite or too large
/// for a block's scale.
Tensor quantize_q8(const Tensor& weight);
/// Back to f32 (O, I).
Tensor dequantize_q8(const Tensor& blocks);
/// act(x W^T + bias) with W in blocks, decoded a tile at a time: the bits of linear() of dequantize_q8(blocks). For
/// inference: throws AutogradError if a gradient is needed.
Tensor linear_q8(const Tensor& x, const Tensor& blocks, const Tensor& bias = {},
                 kernels::Activation activation = kernels::Activation::none);

}  // namespace thimble
