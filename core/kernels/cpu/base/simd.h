#pragma once
// Vectors of an instruction set, for kernels whose body is written once for all of them:
//
//   template <class T, Isa target>
//   struct Body {
//     static THIMBLE_ALWAYS_INLINE void run(const Args& args);  // on Simd<T, target>
//   };
//   compiled_for<target, Body<T, target>, Args>                 // the function
//
// A body and all its calls are inlined into a function of its instruction set. Vectors pass by reference, because a
// body that names no instruction set has no register to pass them by value.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <thimble/core/kernels/cpu/base/variants.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {
namespace simd_detail {

// Operations that must name an instruction set. The operators of a vector need not: they are compiled where the body is
// inlined.

template <class Vector>
void multiply_add(Vector& out, const Vector& a, const Vector& b, const Vector& c) noexcept {
  out = a * b + c;
}

template <class Vector, class Element>
void broadcast(Vector& out, Element x) noexcept {
  out = x - Vector{};  // x + 0 would lose the sign of -0
}

template <class Vector>
void square_root(Vector& out, const Vector& x) noexcept {
  for (std::size_t i = 0; i < sizeof(Vector) / sizeof(x[0]); ++i) out[i] = std::sqrt(x[i]);
}

template <class Vector, class Element, class Index>
void look_up(Vector& out, const Element* table, const Index& index) noexcept {
  for (std::size_t i = 0; i < sizeof(Vector) / sizeof(Element); ++i) out[i] = table[index[i]];
}

#if defined(__x86_64__)
THIMBLE_TARGET_AVX2 inline void multiply_add(__m256& out, const __m256& a, const __m256& b, const __m256& c) noexcept {
  out = _mm256_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX2 inline void multiply_add(__m256d& out, const __m256d& a, const __m256d& b,
                                             const __m256d& c) noexcept {
  out = _mm256_fmadd_pd(a, b, c);
}
THIMBLE_TARGET_AVX512 inline void multiply_add(__m512& out, const __m512& a, const __m512& b,
                                               const __m512& c) noexcept {
  out = _mm512_fmadd_ps(a, b, c);
}
THIMBLE_TARGET_AVX512 inline void multiply_add(__m512d& out, const __m512d& a, const __m512d& b,
                                               const __m512d& c) noexcept {
  out = _mm512_fmadd_pd(a, b, c);
}

inline void square_root(__m128& out, const __m128& x) noexcept { out = _mm_sqrt_ps(x); }
THIMBLE_TARGET_AVX2 inline void square_root(__m256& out, const __m256& x) noexcept { out = _mm256_sqrt_ps(x); }
THIMBLE_TARGET_AVX512 inline void square_root(__m512& out, const __m512& x) noexcept {
  out = _mm512_maskz_sqrt_ps(__mmask16{0xFFFF}, x);  // gcc 12 warns about the form without a mask
}

template <class Vector, class Element>
requires(sizeof(Vector) == 32) THIMBLE_TARGET_AVX2 void broadcast(Vector& out, Element x) noexcept {
  out = x - Vector{};
}
template <class Vector, class Element>
requires(sizeof(Vector) == 64) THIMBLE_TARGET_AVX512 void broadcast(Vector& out, Element x) noexcept {
  out = x - Vector{};
}

template <class Vector, class Element, class Index>
requires(sizeof(Vector) == 32) THIMBLE_TARGET_AVX2
    void look_up(Vector& out, const Element* table, const Index& index) noexcept {
  out = (Vector)_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), (__m256i)index, sizeof(Element));
}
template <class Vector, class Element, class Index>
requires(sizeof(Vector) == 64) THIMBLE_TARGET_AVX512
    void look_up(Vector& out, const Element* table, const Index& index) noexcept {
  out = (Vector)_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), __mmask16{0xFFFF}, (__m512i)index, table,
                                            sizeof(Element));  // without a mask: see square_root
}
#endif

template <class Body, class... Args>
void run_generic(const Args&... args) {
  Body::run(args...);
}

template <Isa target, class Body, class... Args>
constexpr auto function() noexcept {
#if defined(__x86_64__)
  if constexpr (target == Isa::avx512) return &variants_detail::run_avx512<Body, Args...>;
  if constexpr (target == Isa::avx2) return &variants_detail::run_avx2<Body, Args...>;
#endif
  if constexpr (target == Isa::generic) return &run_generic<Body, Args...>;
}

}  // namespace simd_detail

/// A vector register of T, which is float, double or an integer type (computed unsigned, so that it wraps around).
template <class T, Isa target>
struct Simd {
  static constexpr int bytes = target == Isa::avx512 ? 64 : target == Isa::avx2 ? 32 : 16;
  static constexpr int lanes = bytes / static_cast<int>(sizeof(T));

  using Element =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  typedef Element Vector __attribute__((vector_size(bytes), may_alias));
  typedef Element Unaligned __attribute__((vector_size(bytes), may_alias, aligned(sizeof(T))));

  /// The vector at p, with any alignment: copy it to load, assign to it to store.
  static THIMBLE_ALWAYS_INLINE const Unaligned& at(const T* p) noexcept {
    return *reinterpret_cast<const Unaligned*>(p);
  }
  static THIMBLE_ALWAYS_INLINE Unaligned& at(T* p) noexcept { return *reinterpret_cast<Unaligned*>(p); }

  /// out = x in every lane.
  static THIMBLE_ALWAYS_INLINE void broadcast(Vector& out, T x) noexcept {
    simd_detail::broadcast(out, static_cast<Element>(x));
  }
  /// out = a b + c, in one rounding, or in two on the generic instruction set.
  static THIMBLE_ALWAYS_INLINE void multiply_add(Vector& out, const Vector& a, const Vector& b,
                                                 const Vector& c) noexcept {
    simd_detail::multiply_add(out, a, b, c);
  }
  /// out = table[index] for each lane, T being of four bytes.
  static THIMBLE_ALWAYS_INLINE void look_up(Vector& out, const T* table,
                                            const typename Simd<std::uint32_t, target>::Vector& index) noexcept {
    simd_detail::look_up(out, table, index);
  }
  /// out = sqrt(x), correctly rounded. A loop over std::sqrt, which may set errno, does not vectorize.
  static THIMBLE_ALWAYS_INLINE void square_root(Vector& out, const Vector& x) noexcept {
    simd_detail::square_root(out, x);
  }
};

/// Body::run(args...) compiled for an instruction set: a function of const Args&.
template <Isa target, class Body, class... Args>
inline constexpr auto compiled_for = simd_detail::function<target, Body, Args...>();

/// Returns f.operator()<target>() for the instruction set.
template <class F>
decltype(auto) with_target([[maybe_unused]] Isa isa, F&& f) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return f.template operator()<Isa::avx512>();
  if (isa == Isa::avx2) return f.template operator()<Isa::avx2>();
#endif
  return f.template operator()<Isa::generic>();
}

/// A full block of sums of products in registers. AVX2 accumulates in 12 of 16 registers; AVX-512 in 24 of 32, fed by
/// 11 loads, so that reading the left operand in place, row by row, does not starve the multiply-adds.
template <class T, Isa target>
struct FullBlock {
  static constexpr bool is_fused = std::is_floating_point_v<T> && target != Isa::generic;
  static constexpr int rows = !is_fused ? 4 : target == Isa::avx2 ? 6 : 8;
  static constexpr int vectors = is_fused && target == Isa::avx512 ? 3 : 2;
};

/// functions[v - 1][r - 1] = compiled_for<target, Body<T, target, r, v>, Args...>, for blocks of r rows and v vectors,
/// up to the full one.
template <template <class, Isa, int, int> class Body, class T, Isa target, std::size_t most_vectors,
          std::size_t most_rows, class... Args>
constexpr void fill_blocks(void (*(&functions)[most_vectors][most_rows])(const Args&...)) {
  using Full = FullBlock<T, target>;
  [&]<int... i>(std::integer_sequence<int, i...>) {
    ((functions[i / Full::rows][i % Full::rows] =
          compiled_for<target, Body<T, target, i % Full::rows + 1, i / Full::rows + 1>, Args...>),
     ...);
  }
  (std::make_integer_sequence<int, Full::rows * Full::vectors>{});
}

}  // namespace thimble::kernels
