#include <thimble/core/kernels/cpu/matmul/gemm_bf16_pack.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_bf16_kernel.h>

namespace thimble::kernels::gemm_detail {
namespace bf16_pack_detail {

inline constexpr std::int64_t step_elements = step_bytes / 2;
inline constexpr int side = 16;  // of a square of pairs
static_assert(side == step_pairs && side == block_columns && side * 2 == dot_columns);

typedef std::uint32_t Pairs __attribute__((vector_size(side * 4)));
typedef std::uint32_t PairsInMemory __attribute__((vector_size(side * 4), may_alias, aligned(2)));
typedef std::uint16_t Halves __attribute__((vector_size(side * 2)));
typedef std::uint16_t HalvesInMemory __attribute__((vector_size(side * 2), may_alias, aligned(2)));

THIMBLE_ALWAYS_INLINE void store(const Pairs& pairs, void* to) noexcept { *static_cast<PairsInMemory*>(to) = pairs; }

/// The pairs (first[i], second[i]).
THIMBLE_ALWAYS_INLINE void pair_up(const std::uint16_t* first, const std::uint16_t* second, Pairs& out) noexcept {
  const Halves low = *reinterpret_cast<const HalvesInMemory*>(first);
  const Halves high = *reinterpret_cast<const HalvesInMemory*>(second);
  out = __builtin_convertvector(low, Pairs) | __builtin_convertvector(high, Pairs) << 16;
}

template <bool is_second, int... k>
THIMBLE_ALWAYS_INLINE void interleave(const Pairs& a, const Pairs& b, Pairs& out,
                                      std::integer_sequence<int, k...>) noexcept {
  constexpr int first = is_second ? side / 2 : 0;
  out = __builtin_shufflevector(a, b, (first + k / 2 + (k % 2) * side)...);
}

/// Transposes a square of pairs: each perfect shuffle moves one bit of a pair's row number into its column number.
THIMBLE_ALWAYS_INLINE void turn(Pairs (&x)[side]) noexcept {
  constexpr std::make_integer_sequence<int, side> numbers;
  Pairs y[side];
#pragma GCC unroll 4
  for (int step = 1; step < side; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < side / 2; ++i) {
      interleave<false>(x[i], x[i + side / 2], y[2 * i], numbers);
      interleave<true>(x[i], x[i + side / 2], y[2 * i + 1], numbers);
    }
#pragma GCC unroll 16
    for (int i = 0; i < side; ++i) x[i] = y[i];
  }
}

struct CopyRows {
  static void run(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, int rows,
                  std::int64_t depth, std::int64_t filled, std::uint16_t* out) noexcept {
    const int squares = row_stride == 1 ? rows / side * side : 0;
    const std::int64_t whole = depth / step_elements * step_elements;
    for (std::int64_t p = 0; p < whole; p += step_elements) {
      for (int r = 0; r < squares; r += side) {
        copy_square(from + r + p * column_stride, column_stride, filled, out + r * filled + p);
      }
    }
    copy_plain(from, row_stride, column_stride, 0, squares, whole, depth, filled, out);
    copy_plain(from, row_stride, column_stride, squares, rows, 0, depth, filled, out);
  }

 private:
  /// 16 contiguous rows, 32 elements of each.
  static THIMBLE_ALWAYS_INLINE void copy_square(const std::uint16_t* from, std::int64_t column_stride,
                                                std::int64_t filled, std::uint16_t* out) noexcept {
    Pairs x[side];
#pragma GCC unroll 16
    for (int g = 0; g < side; ++g) {
      pair_up(from + 2 * g * column_stride, from + (2 * g + 1) * column_stride, x[g]);
    }
    turn(x);
#pragma GCC unroll 16
    for (int r = 0; r < side; ++r) store(x[r], out + r * filled);
  }

  static void copy_plain(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, int row,
                         int end, std::int64_t begin, std::int64_t depth, std::int64_t filled,
                         std::uint16_t* out) noexcept {
    for (std::int64_t p0 = begin; p0 < filled; p0 += step_elements) {
      const std::int64_t count = std::clamp<std::int64_t>(depth - p0, 0, step_elements);
      for (int r = row; r < end; ++r) {
        const std::uint16_t* const in = from + r * row_stride + p0 * column_stride;
        std::uint16_t* const to = out + r * filled + p0;
        for (std::int64_t p = 0; p < count; ++p) to[p] = in[p * column_stride];
        for (std::int64_t p = count; p < step_elements; ++p) to[p] = 0;
      }
    }
  }
};

struct PackPanel {
  static void run(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                  std::int64_t columns, std::uint8_t* out) noexcept {
    const bool is_full = columns == dot_columns;
    for (std::int64_t p = 0; p < depth; p += step_elements, out += step_block_bytes) {
      const std::uint16_t* const step = from + p * row_stride;
      const bool is_whole = p + step_elements <= depth;
      if (is_whole && is_full && column_stride == 1) {
        pack_rows(step, row_stride, out);
      } else if (is_whole && is_full && row_stride == 1) {
        for (int half = 0; half < 2; ++half) {
          pack_square(step + half * side * column_stride, column_stride, out + half * (step_block_bytes / 2));
        }
      } else {
        pack_plain(step, row_stride, column_stride, std::min(step_elements, depth - p), columns, out);
      }
    }
  }

 private:
  static THIMBLE_ALWAYS_INLINE void pack_rows(const std::uint16_t* from, std::int64_t row_stride,
                                              std::uint8_t* out) noexcept {
    for (int g = 0; g < step_pairs; ++g, from += 2 * row_stride, out += side * pair_bytes) {
      Pairs left, right;
      pair_up(from, from + row_stride, left);
      pair_up(from + side, from + row_stride + side, right);
      store(left, out);
      store(right, out + step_block_bytes / 2);
    }
  }

  /// 16 columns, 32 contiguous elements of each.
  static THIMBLE_ALWAYS_INLINE void pack_square(const std::uint16_t* from, std::int64_t column_stride,
                                                std::uint8_t* out) noexcept {
    Pairs x[side];
#pragma GCC unroll 16
    for (int c = 0; c < side; ++c) x[c] = *reinterpret_cast<const PairsInMemory*>(from + c * column_stride);
    turn(x);
#pragma GCC unroll 16
    for (int g = 0; g < side; ++g) store(x[g], out + g * side * pair_bytes);
  }

  static void pack_plain(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride,
                         std::int64_t depth, std::int64_t columns, std::uint8_t* out) noexcept {
    std::memset(out, 0, static_cast<std::size_t>(step_block_bytes));
    for (std::int64_t p = 0; p < depth; ++p) {
      const std::uint16_t* const row = from + p * row_stride;
      std::uint8_t* const pairs = out + p / 2 * (side * pair_bytes) + p % 2 * 2;
      for (std::int64_t c = 0; c < columns; ++c) {
        std::memcpy(pairs + c / side * (step_block_bytes / 2) + c % side * pair_bytes, row + c * column_stride, 2);
      }
    }
  }
};

}  // namespace bf16_pack_detail

void copy_bf16_rows(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, int rows,
                    std::int64_t depth, std::int64_t filled, std::uint16_t* out) noexcept {
  run_variant<bf16_pack_detail::CopyRows>(from, row_stride, column_stride, rows, depth, filled, out);
}

void pack_bf16_panel(const std::uint16_t* from, std::int64_t row_stride, std::int64_t column_stride, std::int64_t depth,
                     std::int64_t columns, std::uint8_t* out) noexcept {
  run_variant<bf16_pack_detail::PackPanel>(from, row_stride, column_stride, depth, columns, out);
}

}  // namespace thimble::kernels::gemm_detail
