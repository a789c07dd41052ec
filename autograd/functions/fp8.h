#pragma once
// Linear layers with FP8 operands. core/ops/matmul/fp8_linear.h has the operator and its kept tensors;
// core/ops/quant/fp8.h scales and their state.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble {

/// act(x W^T + bias) of FP8 operands, with W (O, I), or W (I, O) as `weight_is_in_out`; bias may be undefined. With a
/// `state` (delayed scaling) it uses the committed scales, and a call that `records` writes the state in forward and
/// backward: staged in the step's Transaction if there is one. Throws ValueError for delayed scaling without a state.
Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Fp8Format& format,
                  const Fp8State& state = {}, bool records = true,
                  kernels::Activation activation = kernels::Activation::none, bool weight_is_in_out = false);

}  // namespace thimble
