#pragma once
// The matmul's loops: C is cut into tiles, each computed by one thread from packed blocks.
//
//   tile      rows x columns of C that one thread computes at a time; its partial sums stay in scratch or in C
//   block     block_depth columns of the left operand and rows of the right one
//   panel     the columns of one microtile in a packed block of the right operand
//   microtile the result of one call of a microkernel, in registers
//
// Invariants: tiles share nothing, so threads need no barriers; an element of C is one chain of sums per 256 of k
// (block_depth), so tile sizes do not affect results.
//
// Example: C (1000, 500) with k 600 in f32 on AVX2, microtiles of 6 x 16. With tiles of 120 x 240, C is 9 x 3 tiles,
// the last ones smaller. A thread takes one: for k in [0, 256), [256, 512) and [512, 600) it packs the right operand's
// rows into 15 panels of 16 columns and calls a microkernel for each of the 20 x 15 microtiles. The first two blocks of
// k leave their sums in scratch or in C, the last one adds them and finishes the elements (gemm_epilogue.h).

#include <array>
#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>
#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>

namespace thimble::kernels::gemm_detail {

inline constexpr int max_batch_rank = 6;

/// One dimension of the batch: its size and how far apart its matrices are (elements; 0 broadcasts).
struct BatchDim {
  std::int64_t size;
  std::int64_t left;
  std::int64_t right;
  std::int64_t out;
  std::int64_t bias;
  bool operator==(const BatchDim&) const noexcept = default;
};

/// Sizes, and the approximate costs in cycles of loading an element into a microkernel and of storing it.
struct Problem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  int batch_rank = 0;
  std::array<BatchDim, max_batch_rank> batch;  ///< only the first batch_rank are set: small products feel the cost
  bool copies_left = false;                    ///< the left operand is not read in place
  bool sums_in_out = false;                    ///< out's rows can hold sums over some blocks of k: they are rows of T,
                                               ///< which this overwrites
  bool has_right_rows = false;                 ///< the right operand's rows can be read in place, in whole cache lines
  double left_cost = 0;
  double right_cost = 0;
  double output_cost = 0;

  std::int64_t batch_size() const noexcept;
};

/// How a problem is cut. A pure function of the problem, the number of threads and the microkernel.
struct Tiling {
  std::int64_t rows = 0;       ///< of a tile; a multiple of the microtile's
  std::int64_t columns = 0;    ///< of a tile; a multiple of the microtile's
  std::int64_t left_rows = 0;  ///< rows of the left operand that are opened at a time
  int width = 0;               ///< columns of a panel
  bool reads_right = false;    ///< whole vectors of the right operand are read in place
  bool sums_in_out = false;    ///< partial sums over k stay in the result's place, instead of in scratch
  bool keeps_right = false;    ///< all blocks of the tile's columns stay packed for the next tiles of the thread
  int threads = 1;
  double cost = 0;  ///< estimated cycles; 0 if there is no tiling

  std::int64_t tile_rows(std::int64_t m) const noexcept { return (m + rows - 1) / rows; }
  std::int64_t tile_columns(std::int64_t n) const noexcept { return (n + columns - 1) / columns; }
};

/// Sizes of a microtile, and bytes of the type.
struct MicroShape {
  int rows;
  int lanes;
  int vectors;
  int element_bytes;

  bool operator==(const MicroShape&) const noexcept = default;
  int columns() const noexcept { return lanes * vectors; }
};
template <class T>
MicroShape micro_shape(const Microkernels<T>& kernels) noexcept {
  return {kernels.rows, kernels.lanes, kernels.vectors, static_cast<int>(sizeof(T))};
}

/// The cheapest tiling for up to `threads` threads.
Tiling choose_tiling(const Problem& problem, const MicroShape& micro, int threads) noexcept;

/// Bytes of workspace that `run` needs for a left operand that takes `left_elements` of scratch per tile.
std::size_t workspace_bytes(const Problem& problem, const Tiling& tiling, const MicroShape& micro,
                            std::int64_t left_elements) noexcept;

/// C = left right for every matrix of the batch. `workspace` is 64-byte aligned.
template <class T>
void run(const Problem& problem, const Tiling& tiling, const Microkernels<T>& kernels, const LeftOperand<T>& left,
         const RightOperand<T>& right, const Output<T>& output, Finish<T> finish, void* workspace) noexcept;

// ---- Products of plain f32 matrices with few rows, on AVX-512: reads both operands and writes C in place.
//
// Nothing is packed, there is no workspace, and a whole column of microtiles is one call: a dozen cycles lie between
// two microtiles. The driver (gemm_driver.h) takes all other products. Both ways give the same bits: gemm_microkernel.h
// defines an element.

/// Whether direct_gemm computes `args`, whose C has elements, with this instruction set: f32 throughout, contiguous
/// rows of a, b and c, up to 512 rows of C, a right operand that stays in the second-level cache, and no epilogue but
/// alpha. Ignores alpha's value, and pointers except whether bias and pre_activation are null.
bool is_direct(const GemmArgs& args, Isa isa) noexcept;

void direct_gemm(const GemmArgs& args, int threads) noexcept;

// ---- Products of few rows by a large right operand, as in a decoder's step. Reading the right operand is the
// bottleneck, so it is read once, in place and in memory order.
//
//   contiguous rows of b (a weight (I, O))     four rows at a time are added to the sums of 1024 columns
//   contiguous columns of b (a weight (O, I))  a vector of columns at a time, transposed in registers, four of k at
//   once
//
// Narrow operands are converted to f32 on the way, a block at a time. The bits equal the other ways':
// gemm_microkernel.h defines an element.

/// Whether few_rows_gemm computes `args`, whose C has elements: up to 4 rows of one matrix, computed in f32, and a
/// right operand of 2^16 elements and more with contiguous rows, or of 2^11 and more with contiguous columns. Ignores
/// pointers.
bool has_few_rows(const GemmArgs& args) noexcept;

/// Depends only on sizes and threads: at most 1 MiB, and 48 KiB for each thread.
std::size_t few_rows_bytes(const GemmArgs& args, int threads) noexcept;

void few_rows_gemm(const GemmArgs& args, void* workspace, int threads) noexcept;

}  // namespace thimble::kernels::gemm_detail
