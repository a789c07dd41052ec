#pragma once
// cuBLASLt and cuDNN for the tables of matmul, convolution, FP8 and 8-bit nets. Each call is made on the compute stream
// of the launching device and stays within the workspace that core/kernels/cuda_workspace.h declares. False means that
// the library has no algorithm for these arguments in that workspace, and nothing was done; the project's kernels
// compute it then. The result depends on the arguments, the library and the kind of device, never on free memory or
// timing.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/fp8.h>

namespace thimble::gpu {

/// All throw DeviceError with the failed call. Without gelu and its kept input.
bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Without an activation, and with a bias only for c in f16 and bf16: FP8 supports no others.
bool library_fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Whether cuBLAS supports block scales, both this build's and the loaded one: from 12.9 on. If none can be loaded,
/// this build's.
bool library_has_fp8_blocks() noexcept;
/// c (m, n) i32 = a (m, k) b (n, k)^T, all dense rows, without a workspace; k and n are multiples of 16.
struct Int8Gemm {
  std::int64_t m, n, k;
  const std::int8_t* a;
  const std::int8_t* b;
  std::int32_t* c;
};
bool library_int8_gemm(const Int8Gemm& args);
/// Without an activation; the caller adds the bias to y.
bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes);

}  // namespace thimble::gpu
