#pragma once
// Packs rows and columns of a matrix in the order that a microkernel reads.
//
// A packed block consists of panels: `width` neighbouring columns (of the left operand: rows), stored element by
// element of k, so that a microkernel walks through memory in order. Panels are panel_stride elements apart.

#include <cstdint>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/tensor/dtype.h>

namespace thimble::kernels::gemm_detail {

/// Elements of one cache line.
template <class T>
inline constexpr std::int64_t line_elements = 64 / static_cast<std::int64_t>(sizeof(T));

/// The panel stride for blocks of `depth`, in lines of `line` elements. A line more than the panel, because panels a
/// multiple of 4 KiB apart would compete for the same few lines of the first-level cache while they are written
/// together.
constexpr std::int64_t panel_stride(std::int64_t depth, std::int64_t width, std::int64_t line) noexcept {
  return ((depth * width + line - 1) / line + 1) * line;
}

/// out[i] = element first + i * stride of `data`, converted to T; count may be 0.
template <class T>
void read_row(const void* data, DType dtype, std::int64_t first, std::int64_t stride, std::int64_t count,
              T* out) noexcept;

/// Transposes rows of `depth` elements: out[p * out_stride + r] = in[r * in_stride + p], converted to T.
template <class T, class From = T>
using Transpose = void (*)(const From* in, std::int64_t in_stride, int rows, int depth, T* out,
                           std::int64_t out_stride);
template <class T, class From = T>
Transpose<T, From> transpose(Isa isa) noexcept;

/// The destination of a block: panels of `width` columns, the last one padded with zeros.
template <class T>
struct Panels {
  T* data = nullptr;
  int width = 0;
  std::int64_t stride = 0;
};

/// Copies row p + i of a block, i < row_count, from rows + i * row_stride into the panels.
template <class T>
void copy_to_panels(const T* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t p,
                    std::int64_t columns, const Panels<T>& panels) noexcept;

/// The same for elements of any dtype that computes in T, row p + i from element first + i * row_stride of `data`.
template <class T>
void copy_to_panels(const void* data, DType dtype, std::int64_t first, std::int64_t row_stride, std::int64_t row_count,
                    std::int64_t p, std::int64_t columns, const Panels<T>& panels) noexcept;

/// Packs a block of rows that fill(p, column, count, out) makes, p < depth.
template <class T, class Fill>
void pack_rows(std::int64_t columns, std::int64_t depth, const Panels<T>& panels, Fill&& fill) noexcept {
  constexpr std::int64_t most = 512;
  alignas(64) T row[most];
  const std::int64_t chunk = most / panels.width * panels.width;
  for (std::int64_t p = 0; p < depth; ++p) {
    for (std::int64_t j = 0; j < columns; j += chunk) {
      const std::int64_t count = columns - j < chunk ? columns - j : chunk;
      fill(p, j, count, row);
      const Panels<T> part{panels.data + j / panels.width * panels.stride, panels.width, panels.stride};
      copy_to_panels(row, 0, 1, p, count, part);
    }
  }
}

}  // namespace thimble::kernels::gemm_detail
