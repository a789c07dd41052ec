#pragma once
// Products of plain f32 matrices with few rows, on AVX-512: both operands are read, and C is written, where they lie.
//
// Nothing is packed, there is no workspace, and a whole column of microtiles is one call, so that what lies between two
// microtiles is a dozen cycles. The driver (gemm_driver.h) takes all other products. Bits are the same on both ways: an
// element is defined in gemm_microkernel.h.

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels::gemm_detail {

/// Whether direct_gemm computes `args`, whose C has elements, with this instruction set: f32 throughout, rows of a, b
/// and c that lie together, up to 512 rows of C, a right operand that stays in the second-level cache, and no epilogue
/// but alpha, which is not looked at. Of pointers it looks only at whether bias and pre_activation are null.
bool is_direct(const GemmArgs& args, Isa isa) noexcept;

/// Computes `args` on up to `threads` threads.
void direct_gemm(const GemmArgs& args, int threads) noexcept;

}  // namespace thimble::kernels::gemm_detail
