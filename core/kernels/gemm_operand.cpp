#include <thimble/core/kernels/gemm_operand.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/compute.h>
#include <thimble/core/kernels/variants.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::gemm_detail {
namespace operand_detail {

template <class T>
void transpose_plain(const T* in, std::int64_t in_stride, int rows, int depth, T* out, std::int64_t out_stride) {
  for (int p = 0; p < depth; ++p) {
    for (int r = 0; r < rows; ++r) out[p * out_stride + r] = in[r * in_stride + p];
  }
}

#if defined(__x86_64__)

/// 8 x 8 floats in registers: pairs, then quadruples, then halves are exchanged.
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE void transpose_8x8(const float* in, std::int64_t in_stride, float* out,
                                                             std::int64_t out_stride) {
  __m256 row[8], pair[8], quad[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(in + i * in_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xEE);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

THIMBLE_TARGET_AVX2 void transpose_avx2(const float* in, std::int64_t in_stride, int rows, int depth, float* out,
                                        std::int64_t out_stride) {
  const int whole_rows = rows / 8 * 8;
  const int whole_depth = depth / 8 * 8;
  for (int r = 0; r < whole_rows; r += 8) {
    for (int p = 0; p < whole_depth; p += 8) {
      transpose_8x8(in + r * in_stride + p, in_stride, out + p * out_stride + r, out_stride);
    }
  }
  transpose_plain(in + whole_depth, in_stride, whole_rows, depth - whole_depth, out + whole_depth * out_stride,
                  out_stride);
  transpose_plain(in + whole_rows * in_stride, in_stride, rows - whole_rows, depth, out + whole_rows, out_stride);
}

#endif

/// Whole panels are copied with constant sizes, which become a few vector moves each.
template <class T>
struct CopyToPanels {
  template <int width>
  static THIMBLE_ALWAYS_INLINE void copy_row(const T* row, std::int64_t columns, std::int64_t depth, T* out) noexcept {
    std::int64_t j = 0;
    for (; j + width <= columns; j += width, out += width * depth) std::memcpy(out, row + j, width * sizeof(T));
    if (j == columns) return;
    for (int i = 0; i < width; ++i) out[i] = j + i < columns ? row[j + i] : T{0};
  }

  template <int width>
  static THIMBLE_ALWAYS_INLINE void copy(const T* rows, std::int64_t row_stride, std::int64_t row_count,
                                         std::int64_t depth, std::int64_t columns, T* out) noexcept {
    for (std::int64_t i = 0; i < row_count; ++i)
      copy_row<width>(rows + i * row_stride, columns, depth, out + i * width);
  }

  static void run(const T* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t depth,
                  std::int64_t columns, int width, T* out) noexcept {
    // The widths of all microtiles, in units of 32 bytes.
    constexpr int unit = 32 / static_cast<int>(sizeof(T));
    switch (width / unit) {
      case 1:
        return copy<unit>(rows, row_stride, row_count, depth, columns, out);
      case 2:
        return copy<2 * unit>(rows, row_stride, row_count, depth, columns, out);
      case 4:
        return copy<4 * unit>(rows, row_stride, row_count, depth, columns, out);
      case 6:
        return copy<6 * unit>(rows, row_stride, row_count, depth, columns, out);
      default:
        __builtin_unreachable();
    }
  }
};

}  // namespace operand_detail

template <class T>
void read_row(const void* data, DType dtype, std::int64_t first, std::int64_t stride, std::int64_t count,
              T* out) noexcept {
  if (dtype == dtype_of<T> && stride == 1) {
    std::memcpy(out, static_cast<const T*>(data) + first, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    load_elements(data, dtype, first, stride, out, count);
  }
}

template <class T>
void copy_to_panels(const T* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t p, std::int64_t depth,
                    std::int64_t columns, int width, T* panels) noexcept {
  run_variant<operand_detail::CopyToPanels<T>>(rows, row_stride, row_count, depth, columns, width, panels + p * width);
}

template <class T>
Transpose<T> transpose([[maybe_unused]] Isa isa) noexcept {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (isa != Isa::generic) return operand_detail::transpose_avx2;
  }
#endif
  return operand_detail::transpose_plain<T>;
}

template <class T>
std::int64_t LeftMatrix<T>::scratch_elements(std::int64_t rows) const noexcept {
  if (is_in_place()) return 0;
  return view_.row_stride == 1 && view_.column_stride != 1 ? block_depth * padded<T>(rows)
                                                           : rows * padded<T>(block_depth);
}

template <class T>
LeftBlock<T> LeftMatrix<T>::open(std::int64_t offset, std::int64_t row, std::int64_t rows, std::int64_t k,
                                 std::int64_t depth, T* scratch) const noexcept {
  const std::int64_t first = offset + row * view_.row_stride + k * view_.column_stride;
  if (is_in_place()) return {static_cast<const T*>(view_.data) + first, view_.row_stride, 1};
  if (view_.row_stride == 1 && view_.column_stride != 1) {
    const std::int64_t stride = padded<T>(rows);
    for (std::int64_t p = 0; p < depth; ++p) {
      read_row(view_.data, view_.dtype, first + p * view_.column_stride, 1, rows, scratch + p * stride);
    }
    return {scratch, 1, stride};
  }
  const std::int64_t stride = padded<T>(block_depth);
  for (std::int64_t r = 0; r < rows; ++r) {
    read_row(view_.data, view_.dtype, first + r * view_.row_stride, view_.column_stride, depth, scratch + r * stride);
  }
  return {scratch, stride, 1};
}

template <class T>
void RightMatrix<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                          std::int64_t depth, int width, T* panels) const noexcept {
  const std::int64_t first = offset + k * view_.row_stride + column * view_.column_stride;
  if (view_.column_stride != 1 && (view_.row_stride == 1 || depth == 1)) {
    pack_columns(first, columns, depth, width, panels);
  } else if (view_.column_stride == 1 && view_.dtype == dtype_of<T>) {
    copy_to_panels(static_cast<const T*>(view_.data) + first, view_.row_stride, depth, 0, depth, columns, width,
                   panels);
  } else {
    pack_rows(columns, depth, width, panels, [&](std::int64_t p, std::int64_t j, std::int64_t count, T* row) {
      read_row(view_.data, view_.dtype, first + p * view_.row_stride + j * view_.column_stride, view_.column_stride,
               count, row);
    });
  }
}

/// Columns of op(B) lie together: they are turned in pieces, converted first when the dtype is another.
template <class T>
void RightMatrix<T>::pack_columns(std::int64_t first, std::int64_t columns, std::int64_t depth, int width,
                                  T* panels) const noexcept {
  constexpr int piece_columns = 16, piece_depth = 64;
  alignas(64) T piece[piece_columns * piece_depth];
  for (std::int64_t j = 0; j < columns; j += width) {
    const int count = static_cast<int>(std::min<std::int64_t>(width, columns - j));
    T* out = panels + j * depth;
    for (int c = 0; c < count; c += piece_columns) {
      const int piece_count = std::min(piece_columns, count - c);
      const std::int64_t start = first + (j + c) * view_.column_stride;
      if (view_.dtype == dtype_of<T>) {
        transpose_(static_cast<const T*>(view_.data) + start, view_.column_stride, piece_count, static_cast<int>(depth),
                   out + c, width);
        continue;
      }
      for (std::int64_t p = 0; p < depth; p += piece_depth) {
        const std::int64_t length = std::min<std::int64_t>(piece_depth, depth - p);
        for (int i = 0; i < piece_count; ++i) {
          read_row(view_.data, view_.dtype, start + i * view_.column_stride + p, 1, length, piece + i * piece_depth);
        }
        transpose_(piece, piece_depth, piece_count, static_cast<int>(length), out + p * width + c, width);
      }
    }
    if (count < width) {
      for (std::int64_t p = 0; p < depth; ++p) std::fill(out + p * width + count, out + (p + 1) * width, T{0});
    }
  }
}

template Transpose<float> transpose<float>(Isa) noexcept;
template Transpose<double> transpose<double>(Isa) noexcept;
template Transpose<std::int64_t> transpose<std::int64_t>(Isa) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, float*) noexcept;
template void copy_to_panels(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int,
                             float*) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, double*) noexcept;
template void copy_to_panels(const double*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int,
                             double*) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t*) noexcept;
template void copy_to_panels(const std::int64_t*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             int, std::int64_t*) noexcept;
template class LeftMatrix<float>;
template class LeftMatrix<double>;
template class LeftMatrix<std::int64_t>;
template class RightMatrix<float>;
template class RightMatrix<double>;
template class RightMatrix<std::int64_t>;

}  // namespace thimble::kernels::gemm_detail
