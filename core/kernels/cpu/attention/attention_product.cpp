#include <thimble/core/kernels/cpu/attention/attention_product.h>

#include <algorithm>

#include <thimble/core/kernels/cpu/base/simd.h>
#include <thimble/core/numbers/integers.h>

namespace thimble::kernels::attention_detail {
namespace product_detail {

/// A block of `rows` rows and `vectors` vectors of columns, from (row, column) on.
template <class T, Isa target, int rows, int vectors>
struct Block {
  using V = Simd<T, target>;
  using Vector = typename V::Vector;

  static THIMBLE_ALWAYS_INLINE void run(const Product<T>& x, std::int64_t row, std::int64_t column) {
    Vector sum[rows][vectors];
    const T* a[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      a[r] = x.a + (row + r) * x.a_row;
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) V::broadcast(sum[r][v], T{0});
    }
    const T* b = x.b + column;
    const std::int64_t a_depth = x.a_depth, b_row = x.b_row;
    std::int64_t p = 0;
    for (std::int64_t left = x.depth; left > 0; --left, p += a_depth, b += b_row) {
      Vector right[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) right[v] = V::at(b + v * V::lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        Vector value;
        V::broadcast(value, a[r][p]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) V::multiply_add(sum[r][v], value, right[v], sum[r][v]);
      }
    }
    const bool is_sum = x.is_sum || x.column_scale;
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      T* out = x.out + row * x.out_row + column + v * V::lanes;
      Vector scale;
      V::broadcast(scale, T{1});
      if (x.column_scale) scale = V::at(x.column_scale + column + v * V::lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r, out += x.out_row) {
        if (is_sum) {
          const Vector before = V::at(out);
          V::multiply_add(sum[r][v], before, scale, sum[r][v]);
        }
        V::at(out) = sum[r][v];
      }
    }
  }
};

/// [vectors - 1][rows - 1]
template <class T, Isa target>
struct Blocks {
  constexpr Blocks() { fill_blocks<Block, T, target>(at); }
  void (*at[FullBlock<T, target>::vectors][FullBlock<T, target>::rows])(const Product<T>&, const std::int64_t& row,
                                                                        const std::int64_t& column) = {};
};
template <class T, Isa target>
inline constexpr Blocks<T, target> blocks_of;

template <Isa target, class T>
void multiply_blocks(const Product<T>& x) noexcept {
  using Full = FullBlock<T, target>;
  constexpr std::int64_t lanes = Simd<T, target>::lanes;
  std::int64_t vectors = 0;
  for (std::int64_t column = 0; column < x.columns; column += vectors * lanes) {
    const std::int64_t left = ceil_div(x.columns - column, lanes);
    // Four vectors are two and two: a single one would wait for its loads.
    vectors = left == 4 ? 2 : std::min<std::int64_t>(left, Full::vectors);
    for (std::int64_t row = 0; row < x.rows; row += Full::rows) {
      const std::int64_t rows = std::min<std::int64_t>(Full::rows, x.rows - row);
      blocks_of<T, target>.at[vectors - 1][rows - 1](x, row, column);
    }
  }
}

}  // namespace product_detail

template <class T>
void multiply(const Product<T>& product) noexcept {
  with_target(isa(), [&]<Isa target>() { product_detail::multiply_blocks<target>(product); });
}

template void multiply<float>(const Product<float>&) noexcept;
template void multiply<double>(const Product<double>&) noexcept;

}  // namespace thimble::kernels::attention_detail
