#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>

#include <algorithm>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>

namespace thimble::kernels::gemm_detail {

template <class T>
std::int64_t LeftMatrix<T>::scratch_elements(std::int64_t rows, int panel_rows) const noexcept {
  if (is_in_place()) return 0;
  if (!has_rows_together()) return rows * scratch_row_stride<T>;
  return (rows + panel_rows - 1) / panel_rows * panel_stride(block_depth, panel_rows, line_elements<T>);
}

template <class T>
LeftBlock<T> LeftMatrix<T>::open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                                 std::int64_t depth, int panel_rows, T* scratch) const noexcept {
  const std::int64_t first = offset + row * view_.row_stride + k * view_.column_stride;
  if (is_in_place()) {
    const T* const base = static_cast<const T*>(view_.data) + first;
    return plain_block(base, panel_rows * view_.row_stride, view_.row_stride, 1, depth);
  }
  if (has_rows_together()) {
    const Panels<T> panels{scratch, panel_rows, panel_stride(depth, panel_rows, line_elements<T>)};
    copy_to_panels(view_.data, view_.dtype, first, view_.column_stride, depth, 0, rows, panels);
    return plain_block<T>(scratch, panels.stride, 1, panel_rows, depth);
  }
  constexpr std::int64_t stride = scratch_row_stride<T>;
  if (view_.column_stride == 1) {
    load_rows(view_.data, view_.dtype, first, view_.row_stride, rows, depth, scratch, stride);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) {
      read_row(view_.data, view_.dtype, first + r * view_.row_stride, view_.column_stride, depth, scratch + r * stride);
    }
  }
  return plain_block<T>(scratch, panel_rows * stride, stride, 1, depth);
}

template <class T>
Lines LeftMatrix<T>::lines(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                           std::int64_t depth) const noexcept {
  if (view_.column_stride != 1 && view_.row_stride != 1) return {};
  const auto bytes = static_cast<std::int64_t>(size_of(view_.dtype));
  const auto lines_of = [bytes](std::int64_t elements) { return (elements * bytes + 63) / 64; };
  const auto* const at = element_at(view_.data, view_.dtype, offset + row * view_.row_stride + k * view_.column_stride);
  if (view_.column_stride == 1) return {{at, view_.row_stride * bytes, rows}, lines_of(depth)};
  return {{at, view_.column_stride * bytes, depth}, lines_of(rows)};
}

template <class T>
RowsInPlace<T> RightMatrix<T>::rows(std::int64_t offset, std::int64_t column, std::int64_t k) const noexcept {
  if (view_.dtype != dtype_of<T> || view_.column_stride != 1) return {};
  return {static_cast<const T*>(view_.data) + offset + k * view_.row_stride + column, view_.row_stride};
}

template <class T>
void RightMatrix<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                          std::int64_t depth, const Panels<T>& panels) const noexcept {
  const std::int64_t first = offset + k * view_.row_stride + column * view_.column_stride;
  if (view_.column_stride != 1 && (view_.row_stride == 1 || depth == 1)) {
    pack_columns(first, columns, depth, panels);
  } else if (view_.column_stride == 1) {
    copy_to_panels(view_.data, view_.dtype, first, view_.row_stride, depth, 0, columns, panels);
  } else {
    pack_rows(columns, depth, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
      read_row(view_.data, view_.dtype, first + p * view_.row_stride + j * view_.column_stride, view_.column_stride,
               count, row);
    });
  }
}

/// Columns of op(B) are contiguous: transposes them in blocks, converting another dtype first.
template <class T>
void RightMatrix<T>::pack_columns(std::int64_t first, std::int64_t columns, std::int64_t depth,
                                  const Panels<T>& panels) const noexcept {
  constexpr int piece_columns = 16, piece_depth = 64;
  alignas(64) T piece[piece_columns * piece_depth];
  const int width = panels.width;
  T* out = panels.data;
  for (std::int64_t j = 0; j < columns; j += width, out += panels.stride) {
    const int count = static_cast<int>(std::min<std::int64_t>(width, columns - j));
    for (int c = 0; c < count; c += piece_columns) {
      const int piece_count = std::min(piece_columns, count - c);
      const std::int64_t start = first + (j + c) * view_.column_stride;
      const auto turn = [&]<class From>(Transpose<T, From> transpose) {
        transpose(static_cast<const From*>(view_.data) + start, view_.column_stride, piece_count,
                  static_cast<int>(depth), out + c, width);
      };
      if (view_.dtype == dtype_of<T>) {
        turn(transpose_);
        continue;
      }
      if constexpr (std::is_same_v<T, float>) {
        if (view_.dtype == DType::bf16) {
          turn(transpose_bf16_);
          continue;
        }
        if (view_.dtype == DType::f16) {
          turn(transpose_f16_);
          continue;
        }
      }
      for (std::int64_t p = 0; p < depth; p += piece_depth) {
        const std::int64_t length = std::min<std::int64_t>(piece_depth, depth - p);
        load_rows(view_.data, view_.dtype, start + p, view_.column_stride, piece_count, length, piece, piece_depth);
        transpose_(piece, piece_depth, piece_count, static_cast<int>(length), out + p * width + c, width);
      }
    }
    if (count < width) {
      for (std::int64_t p = 0; p < depth; ++p) std::fill(out + p * width + count, out + (p + 1) * width, T{0});
    }
  }
}

template class LeftMatrix<float>;
template class LeftMatrix<double>;
template class LeftMatrix<std::int64_t>;
template class RightMatrix<float>;
template class RightMatrix<double>;
template class RightMatrix<std::int64_t>;

}  // namespace thimble::kernels::gemm_detail
