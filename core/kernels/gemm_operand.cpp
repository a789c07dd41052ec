#include <thimble/core/kernels/gemm_operand.h>

#include <algorithm>
#include <type_traits>

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

}  // namespace operand_detail

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
      load_(view_.data, first + p * view_.column_stride, 1, rows, scratch + p * stride);
    }
    return {scratch, 1, stride};
  }
  const std::int64_t stride = padded<T>(block_depth);
  for (std::int64_t r = 0; r < rows; ++r) {
    load_(view_.data, first + r * view_.row_stride, view_.column_stride, depth, scratch + r * stride);
  }
  return {scratch, stride, 1};
}

template <class T>
void RightMatrix<T>::pack(std::int64_t offset, std::int64_t column, std::int64_t columns, std::int64_t k,
                          std::int64_t depth, int width, T* panels) const noexcept {
  const std::int64_t first = offset + k * view_.row_stride + column * view_.column_stride;
  if (view_.column_stride != 1 && (view_.row_stride == 1 || depth == 1)) {
    pack_along_depth(first, columns, depth, width, panels);
  } else {
    pack_along_columns(first, columns, depth, width, panels);
  }
}

/// Rows of op(B) lie together: panel after panel of one row, so that memory is read in order.
template <class T>
void RightMatrix<T>::pack_along_columns(std::int64_t first, std::int64_t columns, std::int64_t depth, int width,
                                        T* panels) const noexcept {
  for (std::int64_t p = 0; p < depth; ++p) {
    for (std::int64_t j = 0; j < columns; j += width) {
      const std::int64_t count = std::min<std::int64_t>(width, columns - j);
      T* out = panels + j * depth + p * width;
      load_(view_.data, first + p * view_.row_stride + j * view_.column_stride, view_.column_stride, count, out);
      std::fill(out + count, out + width, T{0});
    }
  }
}

/// Columns of op(B) lie together: they are turned in pieces, converted first when the dtype is another.
template <class T>
void RightMatrix<T>::pack_along_depth(std::int64_t first, std::int64_t columns, std::int64_t depth, int width,
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
          load_(view_.data, start + i * view_.column_stride + p, 1, length, piece + i * piece_depth);
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
template class LeftMatrix<float>;
template class LeftMatrix<double>;
template class LeftMatrix<std::int64_t>;
template class RightMatrix<float>;
template class RightMatrix<double>;
template class RightMatrix<std::int64_t>;

}  // namespace thimble::kernels::gemm_detail
