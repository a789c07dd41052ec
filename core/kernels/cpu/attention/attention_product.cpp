#include <thimble/core/kernels/cpu/attention/attention_product.h>

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::attention_detail {
namespace product_detail {

template <class T>
using Block = void (*)(const Product<T>&, std::int64_t row, std::int64_t column);

/// Vectors of 16 bytes; multiply and add round separately.
struct Generic {
  static constexpr int rows = 4, max_vectors = 2, bytes = 16;
  template <class T, int row_count, int vectors>
  static void block(const Product<T>& x, std::int64_t row, std::int64_t column) {
    typedef T Vector __attribute__((vector_size(bytes), may_alias));
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector sum[row_count][vectors] = {};
    const T* a = x.a + row * x.a_row;
    const T* b = x.b + column;
    for (std::int64_t left = x.depth; left > 0; --left, a += x.a_depth, b += x.b_row) {
#pragma GCC unroll 8
      for (int r = 0; r < row_count; ++r) {
        const T value = a[r * x.a_row];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] += value * *reinterpret_cast<const Vector*>(b + v * lanes);
      }
    }
    for (int r = 0; r < row_count; ++r) {
      for (int v = 0; v < vectors; ++v) {
        Vector& out = *reinterpret_cast<Vector*>(x.out + (row + r) * x.out_row + column + v * lanes);
        Vector total = sum[r][v];
        if (x.column_scale) {
          total = out * *reinterpret_cast<const Vector*>(x.column_scale + column + v * lanes) + total;
        } else if (x.is_sum) {
          total = out + total;
        }
        out = total;
      }
    }
  }
};

#if defined(__x86_64__)

THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 load_8(const float* p) { return _mm256_load_ps(p); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d load_8(const double* p) { return _mm256_load_pd(p); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE void store_8(float* p, __m256 v) { _mm256_store_ps(p, v); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE void store_8(double* p, __m256d v) { _mm256_store_pd(p, v); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 spread_8(float x) { return _mm256_set1_ps(x); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d spread_8(double x) { return _mm256_set1_pd(x); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 fma_8(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d fma_8(__m256d a, __m256d b, __m256d c) {
  return _mm256_fmadd_pd(a, b, c);
}

/// 6 x 2 vectors: 12 of the 16 registers accumulate.
struct Avx2 {
  static constexpr int rows = 6, max_vectors = 2, bytes = 32;
  template <class T, int row_count, int vectors>
  THIMBLE_TARGET_AVX2 static void block(const Product<T>& x, std::int64_t row, std::int64_t column) {
    using Vector = decltype(spread_8(T{}));
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector sum[row_count][vectors];
    const T* a[row_count];
#pragma GCC unroll 6
    for (int r = 0; r < row_count; ++r) {
      a[r] = x.a + (row + r) * x.a_row;
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = spread_8(T{0});
    }
    const T* b = x.b + column;
    const std::int64_t a_depth = x.a_depth, b_row = x.b_row;
    std::int64_t p = 0;
    for (std::int64_t left = x.depth; left > 0; --left, p += a_depth, b += b_row) {
      Vector right[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) right[v] = load_8(b + v * lanes);
#pragma GCC unroll 6
      for (int r = 0; r < row_count; ++r) {
        const Vector value = spread_8(a[r][p]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] = fma_8(value, right[v], sum[r][v]);
      }
    }
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      T* out = x.out + row * x.out_row + column + v * lanes;
      const Vector scale = x.column_scale ? load_8(x.column_scale + column + v * lanes) : spread_8(T{1});
      const bool is_sum = x.is_sum || x.column_scale;
#pragma GCC unroll 6
      for (int r = 0; r < row_count; ++r, out += x.out_row) {
        store_8(out, is_sum ? fma_8(load_8(out), scale, sum[r][v]) : sum[r][v]);
      }
    }
  }
};

THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 load_16(const float* p) { return _mm512_load_ps(p); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d load_16(const double* p) { return _mm512_load_pd(p); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void store_16(float* p, __m512 v) { _mm512_store_ps(p, v); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void store_16(double* p, __m512d v) { _mm512_store_pd(p, v); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 spread_16(float x) { return _mm512_set1_ps(x); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d spread_16(double x) { return _mm512_set1_pd(x); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 fma_16(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d fma_16(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, c);
}

/// Up to 8 x 3 vectors: 24 of the 32 registers accumulate, and 11 loads feed 24 multiply-adds.
struct Avx512 {
  static constexpr int rows = 8, max_vectors = 3, bytes = 64;
  template <class T, int row_count, int vectors>
  THIMBLE_TARGET_AVX512 static void block(const Product<T>& x, std::int64_t row, std::int64_t column) {
    using Vector = decltype(spread_16(T{}));
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector sum[row_count][vectors];
    const T* a[row_count];
#pragma GCC unroll 8
    for (int r = 0; r < row_count; ++r) {
      a[r] = x.a + (row + r) * x.a_row;
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sum[r][v] = spread_16(T{0});
    }
    const T* b = x.b + column;
    const std::int64_t a_depth = x.a_depth, b_row = x.b_row;
    std::int64_t p = 0;
    for (std::int64_t left = x.depth; left > 0; --left, p += a_depth, b += b_row) {
      Vector right[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) right[v] = load_16(b + v * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < row_count; ++r) {
        const Vector value = spread_16(a[r][p]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] = fma_16(value, right[v], sum[r][v]);
      }
    }
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      T* out = x.out + row * x.out_row + column + v * lanes;
      const Vector scale = x.column_scale ? load_16(x.column_scale + column + v * lanes) : spread_16(T{1});
      const bool is_sum = x.is_sum || x.column_scale;
#pragma GCC unroll 8
      for (int r = 0; r < row_count; ++r, out += x.out_row) {
        store_16(out, is_sum ? fma_16(load_16(out), scale, sum[r][v]) : sum[r][v]);
      }
    }
  }
};

#endif

/// [vectors - 1][rows - 1]
template <class Family, class T>
struct Blocks {
  Block<T> at[Family::max_vectors][Family::rows];
};
template <class Family, class T, int vectors, int... row>
constexpr void fill_blocks(Block<T> (&blocks)[Family::rows], std::integer_sequence<int, row...>) {
  ((blocks[row] = &Family::template block<T, row + 1, vectors>), ...);
}
template <class Family, class T, int... vector>
constexpr Blocks<Family, T> make_blocks(std::integer_sequence<int, vector...>) {
  Blocks<Family, T> blocks{};
  (fill_blocks<Family, T, vector + 1>(blocks.at[vector], std::make_integer_sequence<int, Family::rows>{}), ...);
  return blocks;
}
template <class Family, class T>
inline constexpr Blocks<Family, T> blocks_of =
    make_blocks<Family, T>(std::make_integer_sequence<int, Family::max_vectors>{});

template <class Family, class T>
void multiply_blocks(const Product<T>& x) noexcept {
  constexpr std::int64_t lanes = Family::bytes / static_cast<std::int64_t>(sizeof(T));
  std::int64_t vectors = 0;
  for (std::int64_t column = 0; column < x.columns; column += vectors * lanes) {
    const std::int64_t left = (x.columns - column + lanes - 1) / lanes;
    // Four vectors are two and two: one alone would wait for its loads.
    vectors = left == 4 ? 2 : std::min<std::int64_t>(left, Family::max_vectors);
    for (std::int64_t row = 0; row < x.rows; row += Family::rows) {
      const std::int64_t rows = std::min<std::int64_t>(Family::rows, x.rows - row);
      blocks_of<Family, T>.at[vectors - 1][rows - 1](x, row, column);
    }
  }
}

}  // namespace product_detail

template <class T>
void multiply(const Product<T>& product) noexcept {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return product_detail::multiply_blocks<product_detail::Avx512>(product);
  if (isa() == Isa::avx2) return product_detail::multiply_blocks<product_detail::Avx2>(product);
#endif
  product_detail::multiply_blocks<product_detail::Generic>(product);
}

template void multiply<float>(const Product<float>&) noexcept;
template void multiply<double>(const Product<double>&) noexcept;

}  // namespace thimble::kernels::attention_detail
