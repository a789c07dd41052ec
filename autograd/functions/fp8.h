#pragma once
// Linear layers whose operands are FP8. The operator, and what it keeps, is in core/ops/matmul/fp8_linear.h; scales and
// their state in core/ops/quant/fp8.h.

#include <thimble/core/kernels/shared/activation.h>
#include <thimble/core/ops/quant/fp8.h>

namespace thimble {

/// act(x W^T + bias) of FP8 operands, with W (O, I), or W (I, O) as `weight_is_in_out`; bias may be undefined. With a
/// `state` (delayed scaling) the scales are its committed ones, and a call that `records` writes into it, in forward
/// and in backward: staged in the step's Transaction where there is one. Throws ValueError for delayed scaling without
/// a state.
Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Fp8Format& format,
                  const Fp8State& state = {}, bool records = true,
                  kernels::Activation activation = kernels::Activation::none, bool weight_is_in_out = false);

}  // namespace thimble
