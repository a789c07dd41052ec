#pragma once
// What cuBLASLt and cuDNN do for the tables of matmul, convolution, FP8 and 8-bit nets. Each call is made on the
// compute stream of the launching device and stays within the workspace that core/kernels/cuda_workspace.h declares.
// False: the library has no algorithm for these arguments in that workspace, and nothing was done; the own kernels
// compute it then. Which of the two it is depends on the arguments, the library and the kind of device, never on free
// memory or timing.

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/fp8.h>

namespace thimble::gpu {

/// All throw DeviceError with the call that failed.
/// Without gelu and what it keeps.
bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Without an activation, and with a bias for c in f16 and bf16 alone: no others are there for FP8.
bool library_fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Whether cuBLAS has scales of blocks, that of this build and that which is loaded: from 12.9 on. Where none can be
/// loaded, that of this build.
bool library_has_fp8_blocks() noexcept;
/// c (m, n) i32 = a (m, k) b (n, k)^T, all dense rows, without a workspace; k and n are multiples of 16.
struct Int8Gemm {
  std::int64_t m, n, k;
  const std::int8_t* a;
  const std::int8_t* b;
  std::int32_t* c;
};
bool library_int8_gemm(const Int8Gemm& args);
/// Without an activation; the bias is left to the caller, who adds it to y.
bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes);

}  // namespace thimble::gpu
