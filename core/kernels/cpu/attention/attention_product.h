#pragma once
// The products of attention's tiles: small matrices in the cache, computed in registers block by block.

#include <cstdint>

#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels::attention_detail {

/// out (rows, columns) = a (rows, depth) b (depth, columns) [+ out, its columns first scaled]. Element (r, p) of a is r
/// a_row + p a_depth elements behind a, so that a may be a matrix in place, or its transpose. Rows of b and out are
/// padded to whole vectors (tile_lanes) and aligned to them; every vector that has one of the `columns` is computed and
/// stored.
///
/// A sum over the depth is one chain in ascending p (fused multiply-adds on AVX2 and AVX-512, so these two agree
/// bitwise), added to the previous value: its bits depend only on the operands of the element.
template <class T>
struct Product {
  std::int64_t rows, columns, depth;
  const T* a;
  std::int64_t a_row, a_depth;
  const T* b;
  std::int64_t b_row;
  T* out;
  std::int64_t out_row;
  bool is_sum = false;              ///< out is added to
  const T* column_scale = nullptr;  ///< a row of factors for out's previous values; defaults to 1
};

/// Elements of a vector register.
template <class T>
constexpr std::int64_t tile_lanes(Isa isa) noexcept {
  return (isa == Isa::avx512 ? 64 : isa == Isa::avx2 ? 32 : 16) / static_cast<std::int64_t>(sizeof(T));
}

/// T is float or double.
template <class T>
void multiply(const Product<T>& product) noexcept;

}  // namespace thimble::kernels::attention_detail
