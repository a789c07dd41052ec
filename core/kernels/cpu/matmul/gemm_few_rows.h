#pragma once
// Products of few rows by a right operand that comes from behind the caches, as every one of a decoder's step is: what
// counts is how fast the right operand is read, and it is read once, where it lies and in the order in which it lies.
//
//   rows of b side by side (a weight (I, O))     four rows at a time are added to the sums of 1024 columns
//   columns of b side by side (a weight (O, I))  a vector of columns at a time, turned in registers, four of k at once
//
// Narrow operands are converted to f32 on the way, a block at a time. Bits are those of every other way: an element is
// defined in gemm_microkernel.h.

#include <cstddef>

#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels::gemm_detail {

/// Whether few_rows_gemm computes `args`, whose C has elements: up to 4 rows of one matrix, computed in f32, and a
/// right operand of 2^16 elements and more, whose rows or columns lie side by side. Looks at no pointer.
bool has_few_rows(const GemmArgs& args) noexcept;

/// Of sizes and threads alone: at most 1 MiB, and 48 KiB for each thread.
std::size_t few_rows_bytes(const GemmArgs& args, int threads) noexcept;

/// Computes `args` on up to `threads` threads.
void few_rows_gemm(const GemmArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::gemm_detail
