#pragma once
// The oracles of the CPU kernels.

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/quant_conv.h>

namespace thimble::kernels {

/// The oracle: plain loops, accumulating in double (std::int64_t for integers), one rounding at the store.
void gemm_reference(const GemmArgs& args) noexcept;

/// Convolutions: seven plain loops that accumulate in double.
void conv_forward_reference(const ConvForwardArgs& args) noexcept;
void conv_input_grad_reference(const ConvInputGradArgs& args) noexcept;
void conv_weight_grad_reference(const ConvWeightGradArgs& args) noexcept;
void column_sum_reference(const ColumnSumArgs& args) noexcept;

/// Attention: the definition in double, one rounding at each store. out, and dq, dk and dv, must not
/// overlap inputs; lse, out and the instruction set do not affect the gradients. They allocate rows as they go.
void attention_reference(const AttentionArgs& args);
void attention_grad_reference(const AttentionGradArgs& args);

/// The oracle: plain loops over `weight` (O, KH, KW, C) in place of args.packed, sums in 64 bits.
void quant_conv_reference(const QuantConvArgs& args, const std::int8_t* weight) noexcept;

}  // namespace thimble::kernels
