#pragma once
// Products of plain f32 matrices with few rows, on AVX-512: reads both operands and writes C in place.
//
// Nothing is packed, there is no workspace, and a whole column of microtiles is one call: a dozen cycles lie between
// two microtiles. The driver (gemm_driver.h) takes all other products. Both ways give the same bits: gemm_microkernel.h
// defines an element.

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels::gemm_detail {

/// Whether direct_gemm computes `args`, whose C has elements, with this instruction set: f32 throughout, contiguous
/// rows of a, b and c, up to 512 rows of C, a right operand that stays in the second-level cache, and no epilogue but
/// alpha, which is ignored. Of pointers only whether bias and pre_activation are null counts.
bool is_direct(const GemmArgs& args, Isa isa) noexcept;

void direct_gemm(const GemmArgs& args, int threads) noexcept;

}  // namespace thimble::kernels::gemm_detail
