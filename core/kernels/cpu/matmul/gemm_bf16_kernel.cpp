#include <thimble/core/kernels/cpu/matmul/gemm_bf16_kernel.h>

#include <bit>
#include <cmath>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>

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
/// smallest normal number is zero on a unit and stays here.)
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
  std::int64_t at = 0;  // in a's rows
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
