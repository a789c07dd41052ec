#pragma once
// Products of few rows by a large right operand, as in a decoder's step: the bound is the reading of the right operand,
// so it is read once, in place and in memory order.
//
//   contiguous rows of b (a weight (I, O))     four rows at a time are added to the sums of 1024 columns
//   contiguous columns of b (a weight (O, I))  a vector of columns at a time, transposed in registers, four of k at
//   once
//
// Narrow operands are converted to f32 on the way, a block at a time. Bits equal every other way: gemm_microkernel.h
// defines an element.

#include <cstddef>

#include <thimble/core/kernels/cpu/matmul/gemm.h>

namespace thimble::kernels::gemm_detail {

/// Whether few_rows_gemm computes `args`, whose C has elements: up to 4 rows of one matrix, computed in f32, and a
/// right operand of 2^16 elements and more with contiguous rows, or of 2^11 and more with contiguous columns. Ignores
/// pointers.
bool has_few_rows(const GemmArgs& args) noexcept;

/// Depends only on sizes and threads: at most 1 MiB, and 48 KiB for each thread.
std::size_t few_rows_bytes(const GemmArgs& args, int threads) noexcept;

void few_rows_gemm(const GemmArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::gemm_detail
