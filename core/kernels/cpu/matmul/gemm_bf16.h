#pragma once
// gemm() of bf16 operands on the processor's bf16 dot products (dot_unit.h), where units.h chooses them: with the same
// views, batches, result dtypes and epilogue as any other gemm().

#include <cstddef>

#include <thimble/core/kernels/cpu/base/dot_unit.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels::gemm_detail {

/// gemm_workspace_bytes() and gemm() on a unit. Not empty, both operands bf16.
///
/// Order of accumulation: k is cut into blocks of 1024 from 0; a block's sum is the unit's (gemm_bf16_kernel.h), blocks
/// are added in ascending order in f32. It depends only on k.
std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept;
void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

}  // namespace thimble::kernels::gemm_detail
