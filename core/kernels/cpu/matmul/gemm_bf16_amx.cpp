// The microtiles of bf16 products on AMX.

#include <thimble/core/kernels/cpu/matmul/gemm_bf16_kernel.h>

#if defined(__x86_64__)

#include <algorithm>

#include <immintrin.h>

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
