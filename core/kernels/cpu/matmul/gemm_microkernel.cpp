#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>

#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::gemm_detail {
namespace microkernel_detail {

/// Walks over the lines of Ahead, one per group; without any it stays where `b` is, which is in the cache.
struct Prefetcher {
  THIMBLE_ALWAYS_INLINE Prefetcher(const Ahead& ahead, const void* b) noexcept
      : line(ahead.first != nullptr ? ahead.first : static_cast<const std::byte*>(b)),
        stride(ahead.first != nullptr ? ahead.stride : 0),
        rows(ahead.first != nullptr ? ahead.rows : INT64_MAX),
        left(rows) {}
  /// How many of `groups` groups can be taken before turn().
  THIMBLE_ALWAYS_INLINE std::int64_t groups_to_turn(std::int64_t groups) const noexcept {
    return groups < left ? groups : left;
  }
  /// After as many groups: at the end of a column, on to the next.
  THIMBLE_ALWAYS_INLINE void turn(std::int64_t groups) noexcept {
    left -= groups;
    if (left != 0) return;
    line += 64 - rows * stride;
    left = rows;
  }

  const std::byte* line;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t left;
};

/// Plain C++ on vectors of `bytes` bytes: every instruction set for integers (computed unsigned, because they wrap
/// around), the generic one for floats. Panels of b have `panel_vectors` vectors per p, of which `vectors` are
/// computed.
template <class T, int bytes, int panel_vectors, int rows, int vectors>
THIMBLE_ALWAYS_INLINE void plain_body(const Microtile<T>& tile) {
  using Element =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  typedef Element Vector __attribute__((vector_size(bytes), may_alias));
  typedef Element UnalignedVector __attribute__((vector_size(bytes), may_alias, aligned(sizeof(T))));
  constexpr int lanes = bytes / static_cast<int>(sizeof(T));
  Vector sum[rows][vectors] = {};
  const T* b = tile.b;
  const std::int64_t b_stride = tile.b_stride != 0 ? tile.b_stride : panel_vectors * lanes;
  for (std::int64_t run = 0; run < tile.run_count; ++run) {
    const T* a[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) a[r] = tile.a[run * max_tile_rows + r];
    const std::int64_t end = tile.runs[run] * tile.depth_stride;
    for (std::int64_t p = 0; p < end; p += tile.depth_stride) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const Element value = static_cast<Element>(a[r][p]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sum[r][v] += value * reinterpret_cast<const UnalignedVector*>(b)[v];
      }
      b += b_stride;
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      Vector value = sum[r][v];
      if (tile.total != nullptr) {
        value = *reinterpret_cast<const UnalignedVector*>(tile.total + r * tile.total_stride + v * lanes) + value;
      }
      *reinterpret_cast<UnalignedVector*>(tile.out + r * tile.out_stride + v * lanes) = value;
    }
  }
}

struct Generic {
  static constexpr int rows = 4, vectors = 2, bytes = 16;
  template <class T, int row_count, int vector_count>
  static void kernel(const Microtile<T>& tile) {
    plain_body<T, bytes, vectors, row_count, vector_count>(tile);
  }
};

#if defined(__x86_64__)

THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 load256(const float* p) { return _mm256_loadu_ps(p); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d load256(const double* p) { return _mm256_loadu_pd(p); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE void store256(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE void store256(double* p, __m256d v) { _mm256_storeu_pd(p, v); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 spread256(float x) { return _mm256_set1_ps(x); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d spread256(double x) { return _mm256_set1_pd(x); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 add256(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d add256(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256 fma256(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE __m256d fma256(__m256d a, __m256d b, __m256d c) {
  return _mm256_fmadd_pd(a, b, c);
}

/// 6 x 2 vectors: 12 of the 16 registers accumulate.
struct Avx2 {
  static constexpr int rows = 6, vectors = 2, bytes = 32;
  /// sum += a's column p times b's row.
  template <class T, class Vector, int row_count, int vector_count>
  THIMBLE_TARGET_AVX2 THIMBLE_ALWAYS_INLINE static void step(const T* const (&a)[row_count], std::int64_t p, const T* b,
                                                             Vector (&sum)[row_count][vector_count]) {
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector row[vector_count];
#pragma GCC unroll 2
    for (int v = 0; v < vector_count; ++v) row[v] = load256(b + v * lanes);
#pragma GCC unroll 6
    for (int r = 0; r < row_count; ++r) {
      const Vector value = spread256(a[r][p]);
#pragma GCC unroll 2
      for (int v = 0; v < vector_count; ++v) sum[r][v] = fma256(value, row[v], sum[r][v]);
    }
  }

  template <class T, int row_count, int vector_count>
  THIMBLE_TARGET_AVX2 static void kernel(const Microtile<T>& tile) {
    using Vector = decltype(spread256(T{}));
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector sum[row_count][vector_count];
#pragma GCC unroll 6
    for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < vector_count; ++v) sum[r][v] = spread256(T{0});
    }
    const T* b = tile.b;
    const std::int64_t b_stride = tile.b_stride != 0 ? tile.b_stride : vectors * lanes;
    const std::int64_t depth_stride = tile.depth_stride;
    const T* total = tile.total;
    const std::int64_t total_stride = total != nullptr ? tile.total_stride : 0;
    T* out = tile.out;
    const std::int64_t out_stride = tile.out_stride;
    Prefetcher ahead(tile.ahead, b);
    for (std::int64_t run = 0; run < tile.run_count; ++run) {
      const T* a[row_count];
#pragma GCC unroll 6
      for (int r = 0; r < row_count; ++r) a[r] = tile.a[run * max_tile_rows + r];
      std::int64_t p = 0;
      const std::int64_t depth = tile.runs[run];
      for (std::int64_t groups = depth / group_depth; groups > 0;) {
        // Pointers move on by themselves: with an index more, GCC would run out of registers in the inner loop.
        const std::int64_t some = ahead.groups_to_turn(groups);
        const std::byte* line = ahead.line;
        const std::int64_t stride = ahead.stride;
        const std::int64_t end = p + some * group_depth * depth_stride;
        while (p != end) {
          __builtin_prefetch(line, 0, 2);
          line += stride;
#pragma GCC unroll 4
          for (int i = 0; i < group_depth; ++i) {
            step(a, p, b, sum);
            b += b_stride;
            p += depth_stride;
          }
        }
        ahead.line = line;
        ahead.turn(some);
        groups -= some;
      }
      for (std::int64_t i = 0; i < depth % group_depth; ++i) {
        step(a, p, b, sum);
        b += b_stride;
        p += depth_stride;
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < vector_count; ++v) {
        Vector value = sum[r][v];
        if (total != nullptr) value = add256(load256(total + v * lanes), value);
        store256(out + v * lanes, value);
      }
      // Hidden, so that the rows' addresses are not kept in registers all along.
      out += out_stride;
      total += total_stride;
      __asm__("" : "+r"(out), "+r"(total));
    }
  }
};

struct Avx2Integers {
  static constexpr int rows = 4, vectors = 2, bytes = 32;
  template <class T, int row_count, int vector_count>
  THIMBLE_TARGET_AVX2 static void kernel(const Microtile<T>& tile) {
    plain_body<T, bytes, vectors, row_count, vector_count>(tile);
  }
};

THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 load512(const float* p) { return _mm512_loadu_ps(p); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d load512(const double* p) { return _mm512_loadu_pd(p); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void store512(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void store512(double* p, __m512d v) { _mm512_storeu_pd(p, v); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 spread512(float x) { return _mm512_set1_ps(x); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d spread512(double x) { return _mm512_set1_pd(x); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 add512(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d add512(__m512d a, __m512d b) { return _mm512_add_pd(a, b); }
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512 fma512(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512d fma512(__m512d a, __m512d b, __m512d c) {
  return _mm512_fmadd_pd(a, b, c);
}

/// 8 x 3 vectors: 24 of the 32 registers accumulate, and 11 loads feed 24 multiply-adds, so that a may be read where it
/// lies, row by row, without starving them.
struct Avx512 {
  static constexpr int rows = 8, vectors = 3, bytes = 64;
  /// sum += a's column p times b's row.
  template <class T, class Vector, int row_count, int vector_count>
  THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE static void step(const T* const (&a)[row_count], std::int64_t p,
                                                               const T* b, Vector (&sum)[row_count][vector_count]) {
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector row[vector_count];
#pragma GCC unroll 3
    for (int v = 0; v < vector_count; ++v) row[v] = load512(b + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < row_count; ++r) {
      const Vector value = spread512(a[r][p]);
#pragma GCC unroll 3
      for (int v = 0; v < vector_count; ++v) sum[r][v] = fma512(value, row[v], sum[r][v]);
    }
  }

  template <class T, int row_count, int vector_count>
  THIMBLE_TARGET_AVX512 static void kernel(const Microtile<T>& tile) {
    using Vector = decltype(spread512(T{}));
    constexpr int lanes = bytes / static_cast<int>(sizeof(T));
    Vector sum[row_count][vector_count];
#pragma GCC unroll 8
    for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vector_count; ++v) sum[r][v] = spread512(T{0});
    }
    const T* b = tile.b;
    const std::int64_t b_stride = tile.b_stride != 0 ? tile.b_stride : vectors * lanes;
    const std::int64_t depth_stride = tile.depth_stride;
    const T* total = tile.total;
    const std::int64_t total_stride = total != nullptr ? tile.total_stride : 0;
    T* out = tile.out;
    const std::int64_t out_stride = tile.out_stride;
    Prefetcher ahead(tile.ahead, b);
    for (std::int64_t run = 0; run < tile.run_count; ++run) {
      const T* a[row_count];
#pragma GCC unroll 8
      for (int r = 0; r < row_count; ++r) a[r] = tile.a[run * max_tile_rows + r];
      std::int64_t p = 0;
      const std::int64_t depth = tile.runs[run];
      for (std::int64_t groups = depth / group_depth; groups > 0;) {
        // Pointers move on by themselves: with an index more, GCC would run out of registers in the inner loop.
        const std::int64_t some = ahead.groups_to_turn(groups);
        const std::byte* line = ahead.line;
        const std::int64_t stride = ahead.stride;
        const std::int64_t end = p + some * group_depth * depth_stride;
        while (p != end) {
          __builtin_prefetch(line, 0, 2);
          line += stride;
#pragma GCC unroll 4
          for (int i = 0; i < group_depth; ++i) {
            step(a, p, b, sum);
            b += b_stride;
            p += depth_stride;
          }
        }
        ahead.line = line;
        ahead.turn(some);
        groups -= some;
      }
      for (std::int64_t i = 0; i < depth % group_depth; ++i) {
        step(a, p, b, sum);
        b += b_stride;
        p += depth_stride;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < row_count; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vector_count; ++v) {
        Vector value = sum[r][v];
        if (total != nullptr) value = add512(load512(total + v * lanes), value);
        store512(out + v * lanes, value);
      }
      // Hidden, so that the rows' addresses are not kept in registers all along.
      out += out_stride;
      total += total_stride;
      __asm__("" : "+r"(out), "+r"(total));
    }
  }
};

struct Avx512Integers {
  static constexpr int rows = 4, vectors = 2, bytes = 64;
  template <class T, int row_count, int vector_count>
  THIMBLE_TARGET_AVX512 static void kernel(const Microtile<T>& tile) {
    plain_body<T, bytes, vectors, row_count, vector_count>(tile);
  }
};

#endif

template <class Family, class T, int vectors, int... row>
constexpr void fill(typename Microkernels<T>::Kernel (&kernels)[max_tile_rows], std::integer_sequence<int, row...>) {
  ((kernels[row] = &Family::template kernel<T, row + 1, vectors>), ...);
}
template <class Family, class T, int... vector>
constexpr Microkernels<T> make_table(std::integer_sequence<int, vector...>) {
  Microkernels<T> table{Family::rows, Family::bytes / static_cast<int>(sizeof(T)), Family::vectors, {}};
  (fill<Family, T, vector + 1>(table.kernels[vector], std::make_integer_sequence<int, Family::rows>{}), ...);
  return table;
}
template <class Family, class T>
inline constexpr Microkernels<T> table = make_table<Family, T>(std::make_integer_sequence<int, Family::vectors>{});

}  // namespace microkernel_detail

template <class T>
const Microkernels<T>& microkernels([[maybe_unused]] Isa isa) noexcept {
  using namespace microkernel_detail;
#if defined(__x86_64__)
  constexpr bool is_integer = std::is_integral_v<T>;
  if (isa == Isa::avx512) return table<std::conditional_t<is_integer, Avx512Integers, Avx512>, T>;
  if (isa == Isa::avx2) return table<std::conditional_t<is_integer, Avx2Integers, Avx2>, T>;
#endif
  return table<Generic, T>;
}

template const Microkernels<float>& microkernels<float>(Isa) noexcept;
template const Microkernels<double>& microkernels<double>(Isa) noexcept;
template const Microkernels<std::int64_t>& microkernels<std::int64_t>(Isa) noexcept;

}  // namespace thimble::kernels::gemm_detail
