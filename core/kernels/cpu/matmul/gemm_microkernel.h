#pragma once
// The innermost loop of the matmul: a block of C kept in registers.

#include <bit>
#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels::gemm_detail {

/// Depth (elements of k) of one block of accumulation. Part of the definition of every result: an element of C is
/// (block 0 + block 1) + block 2 + ..., each block one chain of fused multiply-adds (generic: multiply, add) from zero
/// in ascending k. Changing it changes bits.
inline constexpr std::int64_t block_depth = 256;

inline constexpr int max_tile_rows = 8;
inline constexpr int max_tile_vectors = 3;

/// Elements of k that a kernel takes at a time, if a run has enough.
inline constexpr std::int64_t group_depth = 4;

/// Cache lines that a later call will read: the kernel prefetches one per group of k while it computes. One per element
/// would exceed the machine's outstanding loads and hold up the kernel's. The lines lie in columns of `rows` lines,
/// `stride` bytes apart; after a column comes the next line of each row.
struct Ahead {
  const std::byte* first = nullptr;  ///< may be null
  std::int64_t stride = 0;
  std::int64_t rows = 1;
};

/// out (rows, columns) = [total +] a (rows, depth) b (depth, columns). The depth is cut into runs: in run i, element
/// (r, p) of a is a[i * max_tile_rows + r][p * depth_stride], so that rows may be anywhere. Row p of b begins p *
/// b_stride elements behind b, rows of total begin total_stride elements apart; whole vectors of them are read.
template <class T>
struct Microtile {
  const T* const* a;
  const std::int64_t* runs;  ///< the depth of each run
  std::int64_t run_count;
  std::int64_t depth_stride;
  const T* b;
  const T* total;  ///< the sum of the blocks before; null for the first
  std::int64_t total_stride;
  T* out;                     ///< may be `total`
  std::int64_t out_stride;    ///< from one row of out to the next
  std::int64_t b_stride = 0;  ///< 0 for a packed b, `columns()` elements per p
  Ahead ahead{};
};

/// The microkernels of one type and instruction set.
template <class T>
struct Microkernels {
  using Kernel = void (*)(const Microtile<T>&);

  int rows;                                         ///< rows of a full microtile
  int lanes;                                        ///< elements of a vector register, a power of two
  int vectors;                                      ///< vectors in a row of a full microtile
  Kernel kernels[max_tile_vectors][max_tile_rows];  ///< [vectors - 1][rows - 1]

  constexpr int columns() const noexcept { return lanes * vectors; }
  /// The kernel that computes at least `columns` columns of `rows` rows. Every kernel accumulates an element alike.
  Kernel select(int row_count, int column_count) const noexcept {
    return kernels[(column_count - 1) >> std::countr_zero(static_cast<unsigned>(lanes))][row_count - 1];
  }
  bool is_whole_vectors(int column_count) const noexcept { return (column_count & (lanes - 1)) == 0; }
};

/// T is float, double or std::int64_t (which wraps around).
template <class T>
const Microkernels<T>& microkernels(Isa isa) noexcept;

}  // namespace thimble::kernels::gemm_detail
