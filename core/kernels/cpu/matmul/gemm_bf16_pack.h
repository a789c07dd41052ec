#pragma once
// Packs the operands of bf16 products in the order that their microkernels read (gemm_bf16_kernel.h).

#include <cstdint>

namespace thimble::kernels::gemm_detail {

/// `rows` rows of `depth` elements with strides (row_stride, column_stride), each followed by zeros up to `filled`, a
/// multiple of 32, one behind the other. Fast where elements (column_stride 1) or rows (row_stride 1) are contiguous.
void copy_bf16_rows(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, int rows,
                    std::int64_t depth, std::int64_t filled, std::uint16_t* out) noexcept;

/// A panel: `columns` columns (at most 32) of `depth` rows of a right operand, zeros behind them up to 32 columns and a
/// multiple of 32 rows. Fast where columns (column_stride 1) or rows (row_stride 1) are contiguous.
void pack_bf16_panel(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                     std::int64_t columns, std::uint8_t* out) noexcept;

}  // namespace thimble::kernels::gemm_detail
