#pragma once
// The innermost loop of bf16 products: a microtile of 32 columns, on each unit.
//
//   pair    two elements of k, 4 bytes, whose products one lane of an instruction sums
//   step    16 pairs, 64 bytes of k: the contents of one AMX tile
//   panel   32 columns of the right operand, packed step by step: two blocks of 16 pairs x 16 columns x 4 bytes

#include <cstdint>

#include <thimble/core/kernels/cpu/base/dot_unit.h>

namespace thimble::kernels::gemm_detail {

inline constexpr std::int64_t step_bytes = 64;
inline constexpr int dot_rows = 32;       // of a microtile
inline constexpr int dot_columns = 32;    // of a microtile and a panel
inline constexpr int block_columns = 16;  // of a half of a panel
inline constexpr int step_pairs = 16;
inline constexpr int pair_bytes = 4;
inline constexpr std::int64_t step_block_bytes = step_bytes * dot_columns;

/// out (rows, 32) = a (rows, k) b (k, 32), rows <= 32. The bytes of k that do not fill a step are in a_tail, zeros
/// behind them. Rows of out are out_stride elements apart.
struct DotTile {
  const std::uint8_t* a;
  std::int64_t a_stride;       ///< bytes from one row of a to the next
  const std::uint8_t* a_tail;  ///< 32 rows of step_bytes bytes; may be null
  std::int64_t whole_steps;
  const std::uint8_t* b;  ///< a panel
  int rows;
  float* out;
  std::int64_t out_stride;
  bool is_sum = false;   ///< continues the sums in out
  bool is_half = false;  ///< only the first 16 columns of the panel are computed
  /// Rows that a later call reads once, a_stride apart: prefetched step by step while this one computes. May be null.
  const std::uint8_t* ahead = nullptr;

  std::int64_t steps() const noexcept { return whole_steps + (a_tail != nullptr ? 1 : 0); }
};

/// Prefetches the step of `ahead`'s rows that begins `at` bytes behind their begin.
inline void ask_ahead(const DotTile& tile, std::int64_t at) noexcept {
  if (tile.ahead == nullptr) return;
  for (int r = 0; r < tile.rows; ++r) __builtin_prefetch(tile.ahead + r * tile.a_stride + at);
}

/// Computes a microtile. begin(rows) comes before the first one of a thread and whenever `rows` changes, end() after
/// the last.
///
/// The bits of an element depend only on the unit and on its row of a and column of b. Subnormal operands and results
/// count as zero. AVX-512 and its model sum pairs in ascending k, the odd element of a pair first, each product by a
/// fused multiply-add; AMX adds to the sum, every 32 elements, the sum of the even elements plus the sum of the odd
/// ones.
struct DotKernel {
  void (*begin)(int rows);
  void (*compute)(const DotTile& tile);
  void (*end)();
};

/// The kernel of a unit that is_supported() for bf16.
const DotKernel& dot_kernel(DotUnit unit) noexcept;

#if defined(__x86_64__)
extern const DotKernel amx_kernel;
#endif

}  // namespace thimble::kernels::gemm_detail
