#pragma once
// The loops of a product on a bf16 unit, over operands that are read a block at a time (gemm_bf16.h, conv_bf16.h).

#include <cstddef>
#include <cstdint>

#include <thimble/core/kernels/cpu/base/dot_unit.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>

namespace thimble::kernels::gemm_detail {

/// The operands of C (m, n) = A (m, k) B (k, n), as bits of bf16.
class Bf16Operands {
 public:
  std::int64_t m = 0, n = 0, k = 0;

  virtual ~Bf16Operands() = default;

  /// Whether A and B are read in place. Workspaces depend on it, not on the pointers.
  bool reads_left = false, reads_right = false;

  /// A's rows, each contiguous, `a_stride` apart.
  const std::uint16_t* a = nullptr;
  std::int64_t a_stride = 0;
  /// A has at most 4 rows, and B's rows are read in order, a few at a time: both in place, B's columns contiguous.
  bool is_streamed = false;
  /// Elements [p, p + depth) of `rows` rows of A from `row` on, each followed by zeros up to `filled`, one behind the
  /// other. Not called where A is read in place. Called by several threads at once.
  virtual void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                         std::uint16_t* out) const noexcept = 0;

  /// B, with any strides.
  const std::uint16_t* b = nullptr;
  std::int64_t b_row_stride = 0, b_column_stride = 0;
  /// Columns [column, column + columns) of row p of B. Not called where B is read in place. Called by several threads
  /// at once.
  virtual void copy_right(std::int64_t p, std::int64_t column, std::int64_t columns,
                          std::uint16_t* out) const noexcept = 0;
};

/// Offsets of a product's C and bias in `Output`.
struct Bf16Place {
  std::int64_t c_offset = 0, bias_offset = 0;
};

/// Bytes of workspace on up to `threads` threads: depends only on sizes, and on the copied operands.
std::size_t bf16_product_bytes(const Bf16Operands& operands, int threads) noexcept;
/// C, with the order of accumulation of compute_bf16 (gemm_bf16.h).
void bf16_product(const Bf16Operands& operands, const Output<float>& output, const Bf16Place& place, void* workspace,
                  int threads, DotUnit unit) noexcept;

}  // namespace thimble::kernels::gemm_detail
