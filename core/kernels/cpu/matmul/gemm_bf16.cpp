// C is cut into tiles of 1024 x 256, each summed block by block of k: packs a block of B, then multiplies it by 32 rows
// of A at a time. Sums stay in scratch until the last block, and are finished as in any gemm.

#include <thimble/core/kernels/cpu/matmul/gemm_bf16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_epilogue.h>
#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::gemm_detail {

namespace bf16_kernel_detail {

void nothing() {}
void nothing_for(int) {}

/// The bytes of row r of a in step s.
inline const std::uint8_t* row_of(const DotTile& tile, std::int64_t s, int r) noexcept {
  return s < tile.whole_steps ? tile.a + r * tile.a_stride + s * step_bytes : tile.a_tail + r * step_bytes;
}

/// A float whose subnormal values count as zero, as in dot products of bf16. (A result that only rounding lifts to the
/// smallest normal number is zero on a unit, but kept here.)
inline float flushed(float x) noexcept { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

/// The scalar twin of vdpbf16ps: the odd element of a pair first, each product fused with its addition.
struct Model {
  static void run(const DotTile& tile) noexcept {
    for (int r = 0; r < tile.rows; ++r) {
      float sums[dot_columns] = {};
      if (tile.is_sum) std::memcpy(sums, tile.out + r * tile.out_stride, sizeof(sums));
      for (std::int64_t s = 0; s < tile.steps(); ++s) {
        const std::uint8_t* const a = row_of(tile, s, r);
        for (int g = 0; g < step_pairs; ++g) add_pair(a + g * pair_bytes, tile.b + s * step_block_bytes, g, sums);
      }
      std::memcpy(tile.out + r * tile.out_stride, sums, sizeof(sums));
    }
  }

  static void add_pair(const std::uint8_t* a, const std::uint8_t* b, int pair, float* sums) noexcept {
    std::uint32_t left;
    std::memcpy(&left, a, sizeof(left));
    const float odd = value(left & 0xFFFF0000U), even = value(left << 16);
    for (int c = 0; c < dot_columns; ++c) {
      std::uint32_t right;
      const int at = c / block_columns * static_cast<int>(step_block_bytes / 2) + pair * block_columns * pair_bytes;
      std::memcpy(&right, b + at + c % block_columns * pair_bytes, sizeof(right));
      const float sum = flushed(std::fma(odd, value(right & 0xFFFF0000U), sums[c]));
      sums[c] = flushed(std::fma(even, value(right << 16), sum));
    }
  }

  static float value(std::uint32_t bits) noexcept { return flushed(std::bit_cast<float>(bits)); }
};
void compute_model(const DotTile& tile) { run_variant<Model>(tile); }

inline constexpr DotKernel model{nothing_for, compute_model, nothing};

#if defined(__x86_64__)

#define THIMBLE_TARGET_BF16 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

inline std::int32_t pair_at(const std::uint8_t* a) noexcept {
  std::int32_t pair;
  std::memcpy(&pair, a, sizeof(pair));
  return pair;
}

/// Adds `steps` steps of `rows` rows of a, which lie a_stride bytes apart, to their sums.
template <int rows, int halves>
THIMBLE_TARGET_BF16 THIMBLE_ALWAYS_INLINE void add_steps(const std::uint8_t* first, std::int64_t a_stride,
                                                         std::int64_t steps, const std::uint8_t* b,
                                                         __m512 (&sum)[rows][halves]) {
  const std::uint8_t* a[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) a[r] = first + r * a_stride;
  std::int64_t at = 0;  // position in a's rows
  for (std::int64_t s = 0; s < steps; ++s, b += step_block_bytes / 2) {
    for (int g = 0; g < step_pairs; ++g, at += pair_bytes, b += block_columns * pair_bytes) {
      const auto left = (__m512bh)_mm512_load_si512(b);
      const auto right = halves == 1 ? left : (__m512bh)_mm512_load_si512(b + step_block_bytes / 2);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const auto value = (__m512bh)_mm512_set1_epi32(pair_at(a[r] + at));
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], value, left);
        if constexpr (halves == 2) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], value, right);
      }
    }
  }
}

template <int rows, int halves>
THIMBLE_TARGET_BF16 void rows_avx512(const DotTile& tile, int first_row) {
  __m512 sum[rows][halves];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const float* const before = tile.out + (first_row + r) * tile.out_stride;
    for (int half = 0; half < halves; ++half) {
      sum[r][half] = tile.is_sum ? _mm512_loadu_ps(before + half * block_columns) : _mm512_setzero_ps();
    }
  }
  add_steps<rows, halves>(tile.a + first_row * tile.a_stride, tile.a_stride, tile.whole_steps, tile.b, sum);
  if (tile.a_tail != nullptr) {
    add_steps<rows, halves>(tile.a_tail + first_row * step_bytes, step_bytes, 1,
                            tile.b + tile.whole_steps * step_block_bytes, sum);
  }
  float* out = tile.out + first_row * tile.out_stride;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r, out += tile.out_stride) {
    _mm512_storeu_ps(out, sum[r][0]);
    if constexpr (halves == 2) _mm512_storeu_ps(out + block_columns, sum[r][1]);
  }
}
template <int halves>
void halves_avx512(const DotTile& tile) {
  constexpr void (*some_rows[])(const DotTile&, int) = {
      rows_avx512<1, halves>, rows_avx512<2, halves>, rows_avx512<3, halves>, rows_avx512<4, halves>,
      rows_avx512<5, halves>, rows_avx512<6, halves>, rows_avx512<7, halves>};
  int r = 0;
  for (; r + 8 <= tile.rows; r += 8) rows_avx512<8, halves>(tile, r);
  if (r < tile.rows) some_rows[tile.rows - r - 1](tile, r);
}
void compute_avx512(const DotTile& tile) {
  if (tile.is_half) return halves_avx512<1>(tile);
  halves_avx512<2>(tile);
}

inline constexpr DotKernel avx512{nothing_for, compute_avx512, nothing};

#undef THIMBLE_TARGET_BF16
#endif

}  // namespace bf16_kernel_detail

const DotKernel& dot_kernel([[maybe_unused]] DotUnit unit) noexcept {
#if defined(__x86_64__)
  if (unit == DotUnit::amx) return amx_kernel;
  if (unit == DotUnit::avx512) return bf16_kernel_detail::avx512;
#endif
  return bf16_kernel_detail::model;
}

}  // namespace thimble::kernels::gemm_detail

// ---- The microtiles of bf16 products on AMX.

#if defined(__x86_64__)

namespace thimble::kernels::gemm_detail {
namespace bf16_amx_detail {

#define THIMBLE_TARGET_AMX __attribute__((target("amx-tile,amx-bf16")))

// Tiles 0 to 3 are the four sums (upper left, upper right, lower left, lower right), 4 and 5 the rows of a, 6 and 7 the
// columns of b.
THIMBLE_TARGET_AMX void begin(int rows) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t rest[15] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } config;
  const int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
  const int tile_rows[8] = {upper, upper, lower, lower, upper, lower, step_pairs, step_pairs};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = static_cast<std::uint16_t>(step_bytes);
    config.rows[i] = static_cast<std::uint8_t>(tile_rows[i]);
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic declares a read of only 8 bytes
  _tile_loadconfig(&config);
}
THIMBLE_TARGET_AMX void end() { _tile_release(); }

template <bool has_lower, bool has_right>
THIMBLE_TARGET_AMX void compute_rows(const DotTile& tile) {
  float* const out = tile.out;
  const std::int64_t out_stride = tile.out_stride * 4;
  if (tile.is_sum) {
    _tile_loadd(0, out, out_stride);
    if constexpr (has_right) _tile_loadd(1, out + block_columns, out_stride);
    if constexpr (has_lower) _tile_loadd(2, out + 16 * tile.out_stride, out_stride);
    if constexpr (has_lower && has_right) _tile_loadd(3, out + 16 * tile.out_stride + block_columns, out_stride);
  } else {
    _tile_zero(0);
    if constexpr (has_right) _tile_zero(1);
    if constexpr (has_lower) _tile_zero(2);
    if constexpr (has_lower && has_right) _tile_zero(3);
  }
  const std::uint8_t* b = tile.b;
  const std::uint8_t* a = tile.a;
  std::int64_t stride = tile.a_stride;
  for (std::int64_t s = tile.steps(), whole = tile.whole_steps; s > 0; --s, --whole) {
    if (whole == 0) {
      a = tile.a_tail;
      stride = step_bytes;
    }
    ask_ahead(tile, (tile.steps() - s) * step_bytes);
    _tile_loadd(6, b, step_bytes);
    _tile_loadd(4, a, stride);
    if constexpr (has_right) _tile_loadd(7, b + step_block_bytes / 2, step_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (has_right) _tile_dpbf16ps(1, 4, 7);
    if constexpr (has_lower) {
      _tile_loadd(5, a + 16 * stride, stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (has_right) _tile_dpbf16ps(3, 5, 7);
    }
    a += step_bytes;
    b += step_block_bytes;
  }
  _tile_stored(0, out, out_stride);
  if constexpr (has_right) _tile_stored(1, out + block_columns, out_stride);
  if constexpr (has_lower) _tile_stored(2, out + 16 * tile.out_stride, out_stride);
  if constexpr (has_lower && has_right) _tile_stored(3, out + 16 * tile.out_stride + block_columns, out_stride);
}
void compute(const DotTile& tile) {
  if (tile.is_half) return tile.rows > 16 ? compute_rows<true, false>(tile) : compute_rows<false, false>(tile);
  return tile.rows > 16 ? compute_rows<true, true>(tile) : compute_rows<false, true>(tile);
}

#undef THIMBLE_TARGET_AMX

}  // namespace bf16_amx_detail

const DotKernel amx_kernel{bf16_amx_detail::begin, bf16_amx_detail::compute, bf16_amx_detail::end};

}  // namespace thimble::kernels::gemm_detail

#endif

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

namespace thimble::kernels {

namespace gemm_bf16_detail {

using namespace gemm_detail;

inline constexpr std::int64_t tile_rows = 1024, tile_columns = 256, unit_depth = 1024;
inline constexpr std::int64_t step_elements = step_bytes / 2;
// Limits of streamed products (class Streamed): most rows of A, least elements of B; and columns at a time.
inline constexpr std::int64_t most_streamed_rows = 4, least_streamed = 1 << 16, stream_columns = 1024;
inline constexpr std::int64_t worthwhile_work = 1 << 21;  // products that pay for another thread

/// Bytes of packed panels: depth is filled up to a step, columns to a panel.
std::int64_t packed_bytes(std::int64_t depth, std::int64_t columns) noexcept {
  return ceil_div(columns, dot_columns) * ceil_div(depth, step_elements) * step_block_bytes;
}

/// The regions of workspace, in bytes from its start; each is a multiple of 64.
struct Space {
  std::int64_t columns, depth;  // of a tile and of a block, padded
  std::int64_t sums;            // of a whole tile if k has several blocks, else 0
  std::int64_t packed;
  std::int64_t right;  // rows of B that are copied before they are packed, or 0
  std::int64_t left;   // for each thread, rows of A that are copied, or 0
  std::int64_t rows;   // for each thread, sums of a panel's rows when the tile has none
  std::int64_t total(int threads) const noexcept { return sums + packed + right + threads * (left + rows); }
};

Space space_of(const Bf16Operands& x) noexcept {
  Space s{};
  s.columns = std::min(tile_columns, round_up(x.n, dot_columns));
  s.depth = std::min(unit_depth, round_up(std::max<std::int64_t>(x.k, 1), step_elements));
  const bool is_one_block = x.k <= unit_depth;
  s.sums = is_one_block ? 0 : std::min(tile_rows, round_up(x.m, dot_rows)) * s.columns * 4;
  s.rows = is_one_block ? dot_rows * s.columns * 4 : 0;
  s.packed = packed_bytes(s.depth, s.columns);
  s.right = x.reads_right ? 0 : s.depth * s.columns * 2;
  s.left = x.reads_left ? 0 : dot_rows * s.depth * 2;
  return s;
}

int threads_of(const Bf16Operands& x, int threads) noexcept {
  const std::int64_t rows = std::min(tile_rows, x.m), columns = std::min(tile_columns, x.n);
  const std::int64_t panels = ceil_div(rows, dot_rows);
  const std::int64_t most = std::min(panels, rows * columns * std::min(unit_depth, x.k) / worthwhile_work);
  return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
}

/// One tile of C, one block of k.
struct Block {
  std::int64_t row;    // of the tile
  std::int64_t p;      // where the block begins
  std::int64_t depth;  // elements of k
};

/// Adds the products of some rows of a tile to their sums.
void add_rows(const Bf16Operands& x, const Space& space, const Block& block, std::int64_t first, int rows,
              std::int64_t columns, const std::uint8_t* packed, std::uint16_t* left, float* sums,
              const DotKernel& kernel) noexcept {
  alignas(64) std::uint8_t tail[dot_rows * step_bytes] = {};
  alignas(64) float product[dot_rows * dot_columns] = {};
  const std::int64_t filled = round_up(block.depth, step_elements);
  DotTile tile{};
  tile.rows = rows;
  tile.is_half = x.n <= block_columns;
  if (left != nullptr) {
    x.copy_left(block.row + first, rows, block.p, block.depth, filled, left);
    tile.a = reinterpret_cast<const std::uint8_t*>(left);
    tile.a_stride = filled * 2;
    tile.whole_steps = filled / step_elements;
  } else {
    const std::uint16_t* const a = x.a + (block.row + first) * x.a_stride + block.p;
    tile.a = reinterpret_cast<const std::uint8_t*>(a);
    tile.a_stride = x.a_stride * 2;
    tile.whole_steps = block.depth / step_elements;
    if (x.n <= dot_columns && block.row + first + 2 * dot_rows <= x.m) tile.ahead = tile.a + dot_rows * tile.a_stride;
    const std::int64_t rest = block.depth % step_elements;
    tile.a_tail = rest != 0 ? tail : nullptr;
    for (int r = 0; rest != 0 && r < rows; ++r) {
      std::memcpy(tail + r * step_bytes, a + r * x.a_stride + tile.whole_steps * step_elements,
                  static_cast<std::size_t>(rest * 2));
    }
  }
  const bool is_first = block.p == 0;
  const std::int64_t panel_bytes = packed_bytes(block.depth, dot_columns);
  for (std::int64_t column = 0; column < columns; column += dot_columns, packed += panel_bytes) {
    float* const to = sums + column;
    tile.b = packed;
    tile.out = is_first ? to : product;
    tile.out_stride = is_first ? space.columns : dot_columns;
    kernel.compute(tile);
    if (is_first) continue;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dot_columns; ++c) to[r * space.columns + c] += product[r * dot_columns + c];
    }
  }
}

/// Calls body(begin, end) on every thread with its part of [0, count).
template <class Body>
void split(std::int64_t count, int threads, Body&& body) noexcept {
  threads = static_cast<int>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, count)));
  parallel_threads(threads, [&](int thread) { body(count * thread / threads, count * (thread + 1) / threads); });
}

/// Packs a block of B, columns [column, column + columns) of it.
void pack_right(const Bf16Operands& x, const Block& block, std::int64_t column, std::int64_t columns,
                std::uint16_t* rows, std::uint8_t* packed, int threads) noexcept {
  const std::uint16_t* b = rows;
  std::int64_t row_stride = columns, column_stride = 1;
  if (x.reads_right) {
    b = x.b + block.p * x.b_row_stride + column * x.b_column_stride;
    row_stride = x.b_row_stride, column_stride = x.b_column_stride;
  } else {
    split(block.depth, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) x.copy_right(block.p + p, column, columns, rows + p * columns);
    });
  }
  split(ceil_div(columns, dot_columns), threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * dot_columns; first < end * dot_columns; first += dot_columns) {
      pack_bf16_panel(b + first * column_stride, row_stride, column_stride, block.depth,
                      std::min<std::int64_t>(dot_columns, columns - first), packed + packed_bytes(block.depth, first));
    }
  });
}

/// Finishes some rows of a tile, whose place in C is (row, column).
void finish_rows(const Output<float>& output, Finish<float> finish, OutputTile tile, std::int64_t rows,
                 std::int64_t columns, int piece, float* sums, std::int64_t stride) noexcept {
  const std::int64_t row = tile.row, column = tile.column;
  for (std::int64_t r = 0; r < rows; r += max_tile_rows) {
    for (std::int64_t c = 0; c < columns; c += piece) {
      tile.row = row + r, tile.column = column + c;
      tile.rows = static_cast<int>(std::min<std::int64_t>(max_tile_rows, rows - r));
      tile.columns = static_cast<int>(std::min<std::int64_t>(piece, columns - c));
      finish(output, tile, sums + r * stride + c, static_cast<int>(stride));
    }
  }
}

void multiply(const Bf16Operands& x, const Output<float>& output, const Bf16Place& place, void* workspace, int threads,
              DotUnit unit) noexcept {
  threads = threads_of(x, threads);
  const Space space = space_of(x);
  auto* const sums = static_cast<float*>(workspace);
  std::uint8_t* const packed = static_cast<std::uint8_t*>(workspace) + space.sums;
  auto* const right_rows = reinterpret_cast<std::uint16_t*>(packed + space.packed);
  std::uint8_t* const own = packed + space.packed + space.right;  // one region per thread
  const DotKernel& kernel = dot_kernel(unit);
  const Microkernels<float>& micro = microkernels<float>(isa());
  const int piece = micro.lanes * micro.vectors;
  const Finish<float> finisher = finish<float>(isa());
  for (std::int64_t column = 0; column < x.n; column += tile_columns) {
    const std::int64_t columns = std::min(tile_columns, x.n - column);
    for (std::int64_t row = 0; row < x.m; row += tile_rows) {
      const std::int64_t rows = std::min(tile_rows, x.m - row);
      const std::int64_t panels = ceil_div(rows, dot_rows);
      for (std::int64_t p = 0; p == 0 || p < x.k; p += unit_depth) {
        const Block block{row, p, std::min(unit_depth, x.k - p)};
        pack_right(x, block, column, columns, right_rows, packed, threads);
        const bool is_last = p + unit_depth >= x.k;
        const int workers = static_cast<int>(std::min<std::int64_t>(threads, panels));
        parallel_threads(workers, [&](int thread) {
          std::uint8_t* const mine = own + thread * (space.left + space.rows);
          auto* const left = space.left == 0 ? nullptr : reinterpret_cast<std::uint16_t*>(mine);
          int begun = 0;
          for (std::int64_t i = panels * thread / workers; i < panels * (thread + 1) / workers; ++i) {
            const std::int64_t first = i * dot_rows;
            const int count = static_cast<int>(std::min<std::int64_t>(dot_rows, rows - first));
            if (count != begun) kernel.begin(count);
            begun = count;
            float* const to =
                space.rows == 0 ? sums + first * space.columns : reinterpret_cast<float*>(mine + space.left);
            add_rows(x, space, block, first, count, columns, packed, left, to, kernel);
            if (!is_last) continue;
            const OutputTile tile{place.c_offset, place.bias_offset, row + first, column, 0, 0};
            finish_rows(output, finisher, tile, count, columns, piece, to, space.columns);
          }
          if (begun != 0) kernel.end();
        });
      }
    }
  }
}

/// One thread's columns of a streamed product. Packs one step of B at a time, panel by panel of a tile, and continues
/// the sums of the steps before: packed data stays in the caches, and B's rows are read in order.
class Streamed {
 public:
  static constexpr std::int64_t run = step_elements;
  static constexpr std::int64_t packed_run = run / step_elements * step_block_bytes;
  static constexpr std::int64_t sums = most_streamed_rows * stream_columns;  // in floats
  static constexpr std::int64_t thread_bytes = 2 * packed_run + 2 * sums * 4;

  static int threads_of(const Bf16Operands& x, int threads) noexcept {
    constexpr std::int64_t worthwhile_elements = 1 << 17;  // that pay for another thread
    const std::int64_t most = std::min(x.n / dot_columns, x.n * x.k / worthwhile_elements);
    return static_cast<int>(std::clamp<std::int64_t>(most, 1, threads));
  }

  Streamed(const Bf16Operands& x, std::uint8_t* space, DotUnit unit) noexcept
      : x_(x),
        packed_(space),
        block_(reinterpret_cast<float*>(space + 2 * packed_run)),
        total_(block_ + sums),
        kernel_(dot_kernel(unit)) {}

  /// Calls done(column, columns, sums) for every tile of columns.
  template <class Done>
  void compute(std::int64_t begin, std::int64_t end, Done&& done) noexcept {
    kernel_.begin(static_cast<int>(x_.m));
    for (std::int64_t column = begin; column < end; column += stream_columns) {
      const std::int64_t columns = std::min(stream_columns, end - column);
      for (std::int64_t p = 0; p == 0 || p < x_.k; p += unit_depth) {
        const std::int64_t last = std::min(x_.k, p + unit_depth);
        float* const to = p == 0 ? total_ : block_;
        for (std::int64_t q = p; q == p || q < last; q += run) {
          add_run(column, columns, q, std::min(run, last - q), to, q > p);
        }
        for (std::int64_t i = 0; p > 0 && i < x_.m * stream_columns; ++i) total_[i] += block_[i];
      }
      done(column, columns, total_);
    }
    kernel_.end();
  }

 private:
  void add_run(std::int64_t column, std::int64_t columns, std::int64_t p, std::int64_t depth, float* to,
               bool is_sum) noexcept {
    alignas(64) std::uint8_t tail[most_streamed_rows * step_bytes] = {};
    ask(column, columns, p + depth);
    DotTile tile{};
    tile.rows = static_cast<int>(x_.m);
    tile.a = reinterpret_cast<const std::uint8_t*>(x_.a + p);
    tile.a_stride = x_.a_stride * 2;
    tile.whole_steps = depth / step_elements;
    const std::int64_t rest = depth % step_elements;
    tile.a_tail = rest != 0 ? tail : nullptr;
    for (int r = 0; rest != 0 && r < tile.rows; ++r) {
      std::memcpy(tail + r * step_bytes, x_.a + p + r * x_.a_stride + tile.whole_steps * step_elements,
                  static_cast<std::size_t>(rest * 2));
    }
    tile.is_sum = is_sum;
    tile.out_stride = stream_columns;
    // Computes a panel after packing the next one, when the panel's stores have arrived.
    const auto pack = [&](std::int64_t first) {
      pack_bf16_panel(x_.b + p * x_.b_row_stride + column + first, x_.b_row_stride, 1, depth,
                      std::min<std::int64_t>(dot_columns, columns - first), place_of(first));
    };
    pack(0);
    for (std::int64_t first = 0; first < columns; first += dot_columns) {
      if (first + dot_columns < columns) pack(first + dot_columns);
      tile.b = place_of(first);
      tile.out = to + first;
      kernel_.compute(tile);
    }
  }

  std::uint8_t* place_of(std::int64_t first) const noexcept { return packed_ + first / dot_columns % 2 * packed_run; }

  /// Prefetches the rows of the next run.
  void ask(std::int64_t column, std::int64_t columns, std::int64_t p) const noexcept {
    for (std::int64_t r = p; r < std::min(x_.k, p + run); ++r) {
      const std::uint16_t* const row = x_.b + r * x_.b_row_stride + column;
      for (std::int64_t c = 0; c < columns; c += dot_columns) __builtin_prefetch(row + c);
    }
  }

  const Bf16Operands& x_;
  std::uint8_t* packed_;
  float *block_, *total_;
  const DotKernel& kernel_;
};

void multiply_streamed(const Bf16Operands& x, const Output<float>& output, const Bf16Place& place, void* workspace,
                       int threads, DotUnit unit) noexcept {
  threads = Streamed::threads_of(x, threads);
  const std::int64_t each = round_up(ceil_div(x.n, threads), dot_columns);
  const Microkernels<float>& micro = microkernels<float>(isa());
  const Finish<float> finisher = finish<float>(isa());
  parallel_threads(threads, [&](int thread) {
    Streamed worker(x, static_cast<std::uint8_t*>(workspace) + thread * Streamed::thread_bytes, unit);
    worker.compute(std::min(x.n, thread * each), std::min(x.n, (thread + 1) * each),
                   [&](std::int64_t column, std::int64_t columns, float* sums) {
                     const OutputTile tile{place.c_offset, place.bias_offset, 0, column, 0, 0};
                     finish_rows(output, finisher, tile, x.m, columns, micro.lanes * micro.vectors, sums,
                                 stream_columns);
                   });
  });
}

/// Whether C^T = B^T A^T is computed in place of C: few rows, and contiguous columns of B, as in a decoder's weights,
/// which are then read once, in place, while threads divide C^T's many rows. An element has the same products in the
/// same order, and the units' sums treat both factors alike.
bool is_turned(const GemmArgs& args) noexcept { return args.m <= block_columns && args.b_row_stride == 1; }

/// Views of the operands of one matrix in a gemm's batch.
class Views final : public Bf16Operands {
 public:
  Views(const GemmArgs& args, std::int64_t a_offset, std::int64_t b_offset) noexcept
      : rows_(static_cast<const std::uint16_t*>(args.a) + a_offset),
        row_stride_(args.a_row_stride),
        column_stride_(args.a_column_stride) {
    m = args.m, n = args.n, k = args.k;
    b = static_cast<const std::uint16_t*>(args.b) + b_offset;
    b_row_stride = args.b_row_stride, b_column_stride = args.b_column_stride;
    if (is_turned(args)) {
      std::swap(m, n);
      std::swap(rows_, b);
      std::swap(row_stride_, b_column_stride);
      std::swap(column_stride_, b_row_stride);
    }
    reads_left = column_stride_ == 1, reads_right = true;
    a = rows_, a_stride = row_stride_;
    is_streamed = m <= most_streamed_rows && reads_left && b_column_stride == 1 && n * k >= least_streamed;
  }
  void copy_left(std::int64_t row, int rows, std::int64_t p, std::int64_t depth, std::int64_t filled,
                 std::uint16_t* out) const noexcept override {
    copy_bf16_rows(rows_ + row * row_stride_ + p * column_stride_, row_stride_, column_stride_, rows, depth, filled,
                   out);
  }
  void copy_right(std::int64_t, std::int64_t, std::int64_t, std::uint16_t*) const noexcept override {}

 private:
  const std::uint16_t* rows_;
  std::int64_t row_stride_, column_stride_;
};

}  // namespace gemm_bf16_detail

namespace gemm_detail {

std::size_t bf16_product_bytes(const Bf16Operands& operands, int threads) noexcept {
  using namespace gemm_bf16_detail;
  if (operands.is_streamed) {
    return static_cast<std::size_t>(Streamed::threads_of(operands, threads) * Streamed::thread_bytes);
  }
  return static_cast<std::size_t>(space_of(operands).total(threads_of(operands, threads)));
}

void bf16_product(const Bf16Operands& operands, const Output<float>& output, const Bf16Place& place, void* workspace,
                  int threads, DotUnit unit) noexcept {
  using namespace gemm_bf16_detail;
  operands.is_streamed ? multiply_streamed(operands, output, place, workspace, threads, unit)
                       : multiply(operands, output, place, workspace, threads, unit);
}

std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept {
  return bf16_product_bytes(gemm_bf16_detail::Views(args, 0, 0), threads);
}

void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  Output<float> output;
  output.c = args.c;
  output.pre_activation = args.pre_activation;
  output.bias = args.bias;
  output.accumulate = args.accumulate;
  output.activation = args.activation;
  output.dtype = args.c_dtype;
  output.alpha = static_cast<float>(args.alpha);
  output.bias_along_rows = gemm_bf16_detail::is_turned(args);
  output.rows.pixel = args.c_row_stride;
  output.column_stride = args.c_column_stride;
  if (output.bias_along_rows) std::swap(output.rows.pixel, output.column_stride);
  std::int64_t count = 1;
  for (int i = 0; i < args.batch_rank; ++i) count *= args.batch[static_cast<std::size_t>(i)].size;
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t a = 0, b = 0, rest = index;
    Bf16Place place;
    for (int i = args.batch_rank; i-- > 0;) {
      const GemmBatchDim& dim = args.batch[static_cast<std::size_t>(i)];
      const std::int64_t at = rest % dim.size;
      rest /= dim.size;
      a += at * dim.a, b += at * dim.b;
      place.c_offset += at * dim.c, place.bias_offset += at * dim.bias;
    }
    bf16_product(gemm_bf16_detail::Views(args, a, b), output, place, workspace, threads, unit);
  }
}

}  // namespace gemm_detail

}  // namespace thimble::kernels
