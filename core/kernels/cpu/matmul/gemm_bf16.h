#pragma once
// gemm() of bf16 operands on the processor's bf16 dot products (dot_unit.h), where units.h chooses them, with the
// views, batches, result dtypes and epilogue of any other gemm().

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/cpu/base/dot_unit.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>

namespace thimble::kernels::gemm_detail {

// ---- The innermost loop of bf16 products, on each unit: a microtile of 32 columns.
//
//   pair    two elements of k, 4 bytes, whose products one lane of an instruction sums
//   step    16 pairs, 64 bytes of k: the contents of one AMX tile
//   panel   32 columns of the right operand, packed step by step: two blocks of 16 pairs x 16 columns x 4 bytes

inline constexpr std::int64_t step_bytes = 64;
inline constexpr int dot_rows = 32;       // of a microtile
inline constexpr int dot_columns = 32;    // of a microtile and a panel
inline constexpr int block_columns = 16;  // of a half of a panel
inline constexpr int step_pairs = 16;
inline constexpr int pair_bytes = 4;
inline constexpr std::int64_t step_block_bytes = step_bytes * dot_columns;

/// out (rows, 32) = a (rows, k) b (k, 32), rows <= 32. The bytes of k that do not fill a step are in a_tail, followed
/// by zeros. Rows of out are out_stride elements apart.
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

/// Prefetches the step of `ahead`'s rows that begins `at` bytes into them.
inline void ask_ahead(const DotTile& tile, std::int64_t at) noexcept {
  if (tile.ahead == nullptr) return;
  for (int r = 0; r < tile.rows; ++r) __builtin_prefetch(tile.ahead + r * tile.a_stride + at);
}

/// Computes a microtile. Call begin(rows) before a thread's first one and whenever `rows` changes, and end() after its
/// last.
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

// ---- Packs the operands of bf16 products in the order that their microkernels read (gemm_bf16.h).

/// Writes `rows` rows of `depth` elements with strides (row_stride, column_stride), one behind the other, each padded
/// with zeros to `filled`, a multiple of 32. Fast if elements (column_stride 1) or rows (row_stride 1) are contiguous.
void copy_bf16_rows(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, int rows,
                    std::int64_t depth, std::int64_t filled, std::uint16_t* out) noexcept;

/// Writes a panel: `columns` (at most 32) columns of `depth` rows of a right operand, padded with zeros to 32 columns
/// and a multiple of 32 rows. Fast if columns (column_stride 1) or rows (row_stride 1) are contiguous.
void pack_bf16_panel(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                     std::int64_t columns, std::uint8_t* out) noexcept;

// ---- The loops of a product on a bf16 unit, over operands that are read a block at a time (gemm_bf16.h,
// conv_driver.h).

/// The operands of C (m, n) = A (m, k) B (k, n), as the bits of bf16.
class Bf16Operands {
 public:
  std::int64_t m = 0, n = 0, k = 0;

  virtual ~Bf16Operands() = default;

  /// Whether A and B are read in place. Workspaces depend on it, not on the pointers.
  bool reads_left = false, reads_right = false;

  /// A's rows, each contiguous, `a_stride` apart.
  const std::uint16_t* a = nullptr;
  std::int64_t a_stride = 0;
  /// A has at most 4 rows, and B's rows are read in order, a few at a time; both are in place, B's columns contiguous.
  bool is_streamed = false;
  /// Copies elements [p, p + depth) of `rows` rows of A from `row` on, one row behind the other, each padded with zeros
  /// up to `filled`. Not called where A is read in place. Several threads may call it at once.
  virtual void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                         std::uint16_t* out) const noexcept = 0;

  /// B, with any strides.
  const std::uint16_t* b = nullptr;
  std::int64_t b_row_stride = 0, b_column_stride = 0;
  /// Copies columns [column, column + columns) of row p of B. Not called where B is read in place. Several threads may
  /// call it at once.
  virtual void copy_right(std::int64_t p, std::int64_t column, std::int64_t columns,
                          std::uint16_t* out) const noexcept = 0;
};

/// Offsets of a product's C and bias in `Output`.
struct Bf16Place {
  std::int64_t c_offset = 0, bias_offset = 0;
};

/// Bytes of workspace on up to `threads` threads; depends only on sizes and on which operands are copied.
std::size_t bf16_product_bytes(const Bf16Operands& operands, int threads) noexcept;
/// Computes C, in compute_bf16's order of accumulation.
void bf16_product(const Bf16Operands& operands, const Output<float>& output, const Bf16Place& place, void* workspace,
                  int threads, DotUnit unit) noexcept;

/// gemm_workspace_bytes() and gemm() on a unit, for bf16 operands and a product that is not empty.
///
/// Order of accumulation: k is cut into blocks of 1024 from 0; the unit sums a block (see above), and blocks are added
/// in ascending order in f32. It depends only on k.
std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept;
void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

}  // namespace thimble::kernels::gemm_detail
