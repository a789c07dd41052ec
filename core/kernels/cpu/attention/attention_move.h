#pragma once
// Moving matrices between memory and attention's tiles: steps for run_panel (attention_score.h).

#include <cstdint>
#include <utility>

#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels::attention_detail {

/// Vectors of `count` elements, at any address.
template <class T, int count>
struct AnyVector {
  typedef T Type __attribute__((vector_size(count * sizeof(T))));
  typedef T InMemory __attribute__((vector_size(count * sizeof(T)), may_alias, aligned(sizeof(T))));
};

/// to[r, c] = from[r, c] for (rows, columns), and zeros up to `padded` columns. Rows lie from_row and to_row apart.
template <class T, int panel, bool is_fused>
struct CopyRows {
  static void run(std::int64_t rows, std::int64_t columns, std::int64_t padded, const T* from, std::int64_t from_row,
                  T* to, std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    using InMemory = typename AnyVector<T, lanes>::InMemory;
    for (std::int64_t r = 0; r < rows; ++r, from += from_row, to += to_row) {
      std::int64_t c = 0;
      for (; c + lanes <= columns; c += lanes) {
        *reinterpret_cast<InMemory*>(to + c) = *reinterpret_cast<const InMemory*>(from + c);
      }
      for (; c < columns; ++c) to[c] = from[c];
      for (; c < padded; ++c) to[c] = 0;
    }
  }
};

/// a's and b's elements in turn: of their first or of their second halves.
template <bool is_second, class Vector, int... k>
THIMBLE_ALWAYS_INLINE void interleave(const Vector& a, const Vector& b, Vector& out, std::integer_sequence<int, k...>) {
  constexpr int count = sizeof...(k), first = is_second ? count / 2 : 0;
  out = __builtin_shufflevector(a, b, (first + k / 2 + (k % 2) * count)...);
}

/// to[c, r] = factor from[r, c] for (rows, columns). Rows of `from` lie from_row apart, of `to` to_row.
template <class T, int panel, bool is_fused>
struct Transpose {
  static void run(std::int64_t rows, std::int64_t columns, T factor, const T* from, std::int64_t from_row, T* to,
                  std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    std::int64_t r = 0;
    for (; r + lanes <= rows; r += lanes) {
      std::int64_t c = 0;
      for (; c + lanes <= columns; c += lanes)
        square(factor, from + r * from_row + c, from_row, to + c * to_row + r, to_row);
      plain(r, r + lanes, c, columns, factor, from, from_row, to, to_row);
    }
    plain(r, rows, 0, columns, factor, from, from_row, to, to_row);
  }

 private:
  static void plain(std::int64_t r, std::int64_t end, std::int64_t first, std::int64_t columns, T factor, const T* from,
                    std::int64_t from_row, T* to, std::int64_t to_row) {
    for (; r < end; ++r) {
      for (std::int64_t c = first; c < columns; ++c) to[c * to_row + r] = from[r * from_row + c] * factor;
    }
  }

  // A perfect shuffle of all elements per step: each moves one bit of an element's row number into its lane number.
  static THIMBLE_ALWAYS_INLINE void square(T factor, const T* from, std::int64_t from_row, T* to, std::int64_t to_row) {
    constexpr int lanes = panel / 2;
    using Vector = typename AnyVector<T, lanes>::Type;
    using InMemory = typename AnyVector<T, lanes>::InMemory;
    constexpr std::make_integer_sequence<int, lanes> numbers;
    Vector x[lanes], y[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = *reinterpret_cast<const InMemory*>(from + i * from_row) * factor;
#pragma GCC unroll 4
    for (int step = 1; step < lanes; step *= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < lanes / 2; ++i) {
        interleave<false>(x[i], x[i + lanes / 2], y[2 * i], numbers);
        interleave<true>(x[i], x[i + lanes / 2], y[2 * i + 1], numbers);
      }
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) x[i] = y[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) *reinterpret_cast<InMemory*>(to + i * to_row) = x[i];
  }
};

}  // namespace thimble::kernels::attention_detail
