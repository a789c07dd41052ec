#pragma once
// Workspaces of the CUDA kernels of matmul, convolution and attention. Pure functions of sizes and dtypes, known in
// every build: a dry run on a machine without a GPU counts the same bytes as the run on one. A library's algorithm that
// would need more is never used, whatever the device, its free memory or its speed.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/matmul.h>

namespace thimble::kernels {

/// Limit of a matmul's workspace: NVIDIA's recommendation for Hopper.
inline constexpr std::size_t max_gemm_workspace_bytes = std::size_t{32} << 20;
/// Limit of a convolution's workspace.
inline constexpr std::size_t max_conv_workspace_bytes = std::size_t{64} << 20;

/// True where cuBLASLt can compute the product: f32, f16 or bf16 operands, a result of their dtype or f32, at most one
/// batch dimension, contiguous rows or columns in every matrix, no activation with accumulation. Ignores pointers. (The
/// library computes no activations: bits must not depend on whether their input is kept.)
bool is_library_gemm(const GemmArgs& args) noexcept;

/// 16 bytes for every element of c (room for a few partial sums), at most max_gemm_workspace_bytes; 0 where the library
/// is not used.
std::size_t cuda_gemm_workspace_bytes(const GemmArgs& args, int threads) noexcept;

/// True where cuBLASLt can multiply the codes on a device with FP8 units (sm_89 on): sizes that are multiples of 16
/// along the sum and along the rows of c, rows of operands and c aligned to 16 bytes, at most one operand in E5M2. The
/// arguments have its layout TN. Block scales also need rows of a in multiples of 8, and exactly compute capability 9.0
/// (fp8_blocks_on_units in core/ops/quant/fp8_linear.h). Ignores pointers.
bool is_library_fp8_gemm(const Fp8GemmArgs& args) noexcept;

/// Bytes as in cuda_gemm_workspace_bytes.
std::size_t cuda_fp8_gemm_workspace_bytes(const Fp8GemmArgs& args) noexcept;

/// True where cuDNN can compute the convolution: nothing empty, equal padding on both sides and a supported dtype.
bool is_library_conv(const ConvShape& shape, DType dtype, DType out_dtype) noexcept;

/// 4 bytes for every element of input, weight and output, at most max_conv_workspace_bytes; 0 where the library is not
/// used.
std::size_t cuda_conv_forward_bytes(const ConvForwardArgs& args, int threads) noexcept;
std::size_t cuda_conv_input_grad_bytes(const ConvInputGradArgs& args, int threads) noexcept;
std::size_t cuda_conv_weight_grad_bytes(const ConvWeightGradArgs& args, int threads) noexcept;

/// The widest heads whose attention has kernels on tensor cores; 0 where the dtype has none. In f32 the tiles of wider
/// heads would need more shared memory than all devices have.
constexpr std::int64_t widest_tensor_core_attention(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 ? 256 : dtype == DType::f32 ? 128 : 0;
}
/// Whether attention runs on tensor cores: f16 and bf16, and f32 with TF32 on, in widths of 16, 32, ... up to the
/// widest. Everything else runs on a kernel that computes in f32, or f64 for f64. Layouts, lengths, windows,
/// documents and masks do not matter.
bool is_tensor_core_attention(const AttentionProblem& problem) noexcept;
/// The first region of the backward pass's workspace: sum_d out dout of each query, in f32.
std::size_t tensor_core_attention_delta_bytes(const AttentionProblem& problem) noexcept;

/// Forward takes none. Backward keeps q's gradient, because it may alias q: in the compute type, or on tensor cores in
/// the operands' type, behind the sums. f32 has room for the sums with TF32 on or off, so that a plan holds for both.
std::size_t cuda_attention_forward_bytes(const AttentionProblem& problem, int threads) noexcept;
std::size_t cuda_attention_backward_bytes(const AttentionProblem& problem, int threads) noexcept;

}  // namespace thimble::kernels
