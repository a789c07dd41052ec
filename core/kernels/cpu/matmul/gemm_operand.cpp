#include <thimble/core/kernels/cpu/matmul/gemm_operand.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/cpu/base/narrow_avx2.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/kernels/cpu/base/variants.h>

namespace thimble::kernels::gemm_detail {

namespace pack_detail {

template <class T, class From>
void transpose_plain(const From* in, std::int64_t in_stride, int rows, int depth, T* out, std::int64_t out_stride) {
  for (int p = 0; p < depth; ++p) {
    for (int r = 0; r < rows; ++r) out[p * out_stride + r] = static_cast<T>(in[r * in_stride + p]);
  }
}

#if defined(__x86_64__)

template <class From>
THIMBLE_TARGET_F16C void transpose_avx2(const From* in, std::int64_t in_stride, int rows, int depth, float* out,
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

/// `width` elements of a row, converted to T.
template <class T, class From>
struct Convert {
  template <int width>
  static THIMBLE_ALWAYS_INLINE void run(const From* __restrict row, T* __restrict to) noexcept {
    if constexpr (std::is_same_v<T, From>) {
      std::memcpy(to, row, width * sizeof(T));
    } else {
      for (int c = 0; c < width; ++c) to[c] = static_cast<T>(row[c]);
    }
  }
  /// `count` elements, fewer than the width, followed by zeros.
  template <int width>
  static THIMBLE_ALWAYS_INLINE void run_some(const From* row, std::int64_t count, T* to) noexcept {
    for (int c = 0; c < width; ++c) to[c] = c < count ? static_cast<T>(row[c]) : T{0};
  }
};

#if defined(__x86_64__)
/// 16 bits by AVX2's and F16C's instructions.
struct ConvertAvx2 {
  template <int width, class From>
  THIMBLE_TARGET_F16C static void run(const From* row, float* to) noexcept {
    constexpr int rest = width % 8;
    for (int c = 0; c + rest < width; c += 8) _mm256_storeu_ps(to + c, load_8(row + c));
    if constexpr (rest != 0) {
      static_assert(rest == 4 || rest == 6);
      row += width - rest;
      to += width - rest;
      __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row));
      if constexpr (rest == 6) {
        int last;
        std::memcpy(&last, row + 4, sizeof last);
        codes = _mm_insert_epi32(codes, last, 2);
      }
      const __m256 values = floats_8(codes, From{});
      _mm_storeu_ps(to, _mm256_castps256_ps128(values));
      if constexpr (rest == 6) _mm_storel_pi(reinterpret_cast<__m64*>(to + 4), _mm256_extractf128_ps(values, 1));
    }
  }
  template <int width, class From>
  THIMBLE_TARGET_F16C static void run_some(const From* row, std::int64_t count, float* to) noexcept {
    From last[width] = {};
    std::memcpy(last, row, static_cast<std::size_t>(count) * sizeof(From));
    run<width>(last, to);
  }
};

/// 16 bits by AVX-512's instructions: the end of a row under a mask.
struct ConvertAvx512 {
  template <int width, class From>
  THIMBLE_TARGET_AVX512 static void run(const From* row, float* to) noexcept {
    run_some<width>(row, width, to);
  }
  template <int width, class From>
  THIMBLE_TARGET_AVX512 static void run_some(const From* row, std::int64_t count, float* to) noexcept {
#pragma GCC unroll 3
    for (int c = 0; c < width; c += 16) {
      const __m256i codes = _mm256_maskz_loadu_epi16(lanes(count - c), row + c);
      const __m512 values = convert(codes, From{});
      width - c >= 16 ? _mm512_storeu_ps(to + c, values) : _mm512_mask_storeu_ps(to + c, lanes(width - c), values);
    }
  }

 private:
  static THIMBLE_ALWAYS_INLINE __mmask16 lanes(std::int64_t count) noexcept {
    return static_cast<__mmask16>((1U << std::clamp<std::int64_t>(count, 0, 16)) - 1U);
  }
  // The masked forms with all lanes set compile to the plain instructions, without g++ 12's false warning about them.
  THIMBLE_TARGET_AVX512 static __m512 convert(__m256i codes, f16) noexcept {
    return _mm512_maskz_cvtph_ps(0xFFFF, codes);
  }
  THIMBLE_TARGET_AVX512 static __m512 convert(__m256i codes, bf16) noexcept {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, codes), 16));
  }
};
#endif

/// Whole panels are copied with constant sizes, which become a few vector moves each, and are converted on the way.
template <class T, class From, class Move = Convert<T, From>>
struct CopyToPanels {
  static constexpr std::int64_t rows_ahead = 4;  // whose lines are prefetched: rows are too short for the
                                                 // machine's prefetcher

  template <int width>
  static THIMBLE_ALWAYS_INLINE void copy(const From* rows, std::int64_t row_stride, std::int64_t row_count,
                                         std::int64_t columns, T* out, std::int64_t panel_stride) noexcept {
    for (std::int64_t i = 0; i < row_count; ++i) {
      const From* row = rows + i * row_stride;
      T* __restrict to = out + i * width;
      const From* const later = row + rows_ahead * row_stride;
      std::int64_t j = 0;
      for (; j + width <= columns; j += width, to += panel_stride) {
        for (int c = 0; c < width; c += line_elements<From>) __builtin_prefetch(later + j + c);
        Move::template run<width>(row + j, to);
      }
      if (j < columns) Move::template run_some<width>(row + j, columns - j, to);
    }
  }

  static void run(const From* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t columns, int width,
                  T* out, std::int64_t panel_stride) noexcept {
    switch (width) {  // rows and columns of every microtile
      case 4:
        return copy<4>(rows, row_stride, row_count, columns, out, panel_stride);
      case 6:
        return copy<6>(rows, row_stride, row_count, columns, out, panel_stride);
      case 8:
        return copy<8>(rows, row_stride, row_count, columns, out, panel_stride);
      case 16:
        return copy<16>(rows, row_stride, row_count, columns, out, panel_stride);
      case 24:
        return copy<24>(rows, row_stride, row_count, columns, out, panel_stride);
      case 32:
        return copy<32>(rows, row_stride, row_count, columns, out, panel_stride);
      case 48:
        return copy<48>(rows, row_stride, row_count, columns, out, panel_stride);
      default:
        __builtin_unreachable();
    }
  }
};

#if defined(__x86_64__)
template <class Inner, class... Args>
THIMBLE_TARGET_F16C __attribute__((flatten)) void run_f16c(const Args&... args) {
  Inner::run(args...);
}
#endif

template <class T, class From>
void copy_from(const From* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t p, std::int64_t columns,
               const Panels<T>& panels) noexcept {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float> && !std::is_same_v<From, float>) {
    if (isa() == Isa::avx512) {
      return run_variant<CopyToPanels<T, From, ConvertAvx512>>(rows, row_stride, row_count, columns, panels.width,
                                                               panels.data + p * panels.width, panels.stride);
    }
    const bool converts =
        std::is_same_v<From, f16> ? isa() != Isa::generic && this_processor().has_f16c : isa() == Isa::avx2;
    if (converts) {
      return run_f16c<CopyToPanels<T, From, ConvertAvx2>>(rows, row_stride, row_count, columns, panels.width,
                                                          panels.data + p * panels.width, panels.stride);
    }
  }
#endif
  run_variant<CopyToPanels<T, From>>(rows, row_stride, row_count, columns, panels.width, panels.data + p * panels.width,
                                     panels.stride);
}

}  // namespace pack_detail

template <class T>
void read_row(const void* data, DType dtype, std::int64_t first, std::int64_t stride, std::int64_t count,
              T* out) noexcept {
  if (dtype == dtype_of<T> && stride == 1) {
    std::memcpy(out, static_cast<const T*>(data) + first, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    load_elements(data, dtype, first, stride, out, count);
  }
}

template <class T, class From>
Transpose<T, From> transpose([[maybe_unused]] Isa isa) noexcept {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    const bool lacks = std::is_same_v<From, f16> && !this_processor().has_f16c;
    if (isa != Isa::generic && !lacks) return pack_detail::transpose_avx2<From>;
  }
#endif
  return pack_detail::transpose_plain<T, From>;
}

template <class T>
void copy_to_panels(const T* rows, std::int64_t row_stride, std::int64_t row_count, std::int64_t p,
                    std::int64_t columns, const Panels<T>& panels) noexcept {
  pack_detail::copy_from(rows, row_stride, row_count, p, columns, panels);
}

template <class T>
void copy_to_panels(const void* data, DType dtype, std::int64_t first, std::int64_t row_stride, std::int64_t row_count,
                    std::int64_t p, std::int64_t columns, const Panels<T>& panels) noexcept {
  const auto copy = [&](auto zero) {
    const auto* const rows = static_cast<const decltype(zero)*>(data) + first;
    pack_detail::copy_from(rows, row_stride, row_count, p, columns, panels);
  };
  if (dtype == dtype_of<T>) return copy(T{});
  if constexpr (std::is_same_v<T, float>) {
    if (dtype == DType::bf16) return copy(bf16{});
    if (dtype == DType::f16) return copy(f16{});
  }
  const Panels<T> below{panels.data + p * panels.width, panels.width, panels.stride};
  pack_rows(columns, row_count, below, [&](std::int64_t i, std::int64_t j, std::int64_t count, T* row) {
    read_row(data, dtype, first + i * row_stride + j, 1, count, row);
  });
}

template Transpose<float, bf16> transpose<float, bf16>(Isa) noexcept;
template Transpose<float, f16> transpose<float, f16>(Isa) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, float*) noexcept;
template Transpose<float> transpose<float>(Isa) noexcept;
template void copy_to_panels(const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<float>&) noexcept;
template void copy_to_panels(const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<float>&) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, double*) noexcept;
template Transpose<double> transpose<double>(Isa) noexcept;
template void copy_to_panels(const double*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<double>&) noexcept;
template void copy_to_panels(const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<double>&) noexcept;
template void read_row(const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t*) noexcept;
template Transpose<std::int64_t> transpose<std::int64_t>(Isa) noexcept;
template void copy_to_panels(const std::int64_t*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<std::int64_t>&) noexcept;
template void copy_to_panels(const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             const Panels<std::int64_t>&) noexcept;

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

/// If columns of op(B) are contiguous: transposes them in blocks, after converting another dtype.
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
