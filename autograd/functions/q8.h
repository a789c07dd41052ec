#pragma once
// Weights of linear layers in Q8_0 blocks (core/kernels/q8_block.h): 32 numbers in 34 bytes. The operator is in
// core/ops/matmul/linear_q8.h.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// W (O, I), f32, any strides -> its Q8_0 blocks (O, 34 I / 32), u8, booked as a parameter
/// (core/ops/matmul/linear_q8.h). Not recorded. Throws ShapeError unless 32 divides I, DTypeError, DeviceError,
/// ValueError: a value is not finite or too large for a block's scale.
Tensor quantize_q8(const Tensor& weight);
/// Back to f32 (O, I).
Tensor dequantize_q8(const Tensor& blocks);
/// act(x W^T + bias) with W in blocks: linear() of dequantize_q8(blocks), bit for bit, a tile of W at a time. For
/// inference: throws AutogradError where a gradient is needed.
Tensor linear_q8(const Tensor& x, const Tensor& blocks, const Tensor& bias = {},
                 kernels::Activation activation = kernels::Activation::none);

}  // namespace thimble
