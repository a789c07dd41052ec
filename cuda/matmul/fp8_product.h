#pragma once
// Products of FP8 codes on CUDA devices.

#include <thimble/core/kernels/fp8.h>

namespace thimble::cuda_kernels {

/// cuBLASLt's on devices with FP8 units, where it supports the product; else tiles that decode their input, in the
/// order of the CPU's chains. `workspace`: cuda_fp8_gemm_workspace_bytes(args).
void fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace);

}  // namespace thimble::cuda_kernels
