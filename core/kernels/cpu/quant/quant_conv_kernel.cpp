#include <thimble/core/kernels/cpu/quant/quant_conv_kernel.h>

#include <cstring>

#include <thimble/core/kernels/cpu/base/isa.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::quant_detail {
namespace quant_kernel_detail {

inline constexpr int lanes = 16;  // of a block, 4 bytes each

/// y of one pixel from its sums, filter by filter.
void finish(const QuantConvArgs& args, const QuantTile& tile, int row, const std::int32_t* sums) noexcept {
  const std::int64_t at = row * tile.stride;
  for (int f = 0; f < tile.filters; ++f) {
    const auto sum = static_cast<std::uint32_t>(sums[f]) + static_cast<std::uint32_t>(tile.bias[f]);
    float v = static_cast<float>(static_cast<std::int32_t>(sum)) * tile.scale[f];
    if (tile.residual != nullptr) {
      v += static_cast<float>(tile.residual[at + f] - args.residual_zero) * args.residual_scale;
    }
    if (args.y_dtype == DType::f32) {
      static_cast<float*>(tile.y)[at + f] = v;
    } else {
      static_cast<std::uint8_t*>(tile.y)[at + f] = quant_code(v, args.zero, args.low, args.high);
    }
  }
}

/// Sums of lanes to sums of filters: in a narrow block each has two lanes.
template <bool is_narrow>
void finish_lanes(const QuantConvArgs& args, const QuantTile& tile, int row, std::int32_t* sums) noexcept {
  if constexpr (is_narrow) {
    for (int f = 0; f < lanes / 2; ++f) sums[f] = sums[2 * f] + sums[2 * f + 1];
  }
  finish(args, tile, row, sums);
}

template <bool is_narrow>
void tile_generic(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  for (int r = 0; r < tile.count; ++r) {
    std::int32_t sums[most_blocks * lanes] = {};
    const std::uint8_t* b = tile.panel;
    for (std::int64_t run = 0; run < tile.run_count; ++run) {
      const std::uint8_t* const a = tile.rows[r] + tile.runs[run];
      for (std::int64_t at = 0; at < tile.run_bytes; at += depth) {
        for (int block = 0; block < tile.blocks; ++block, b += block_bytes) {
          for (int i = 0; i < block_bytes; ++i) {
            sums[block * lanes + i / 4] += a[at + i % depth] * static_cast<std::int8_t>(b[i]);
          }
        }
      }
    }
    finish_lanes<is_narrow>(args, tile, r, sums);
  }
}

#if defined(__x86_64__)

#define THIMBLE_TARGET_QUANT __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/// Bytes widened to 16 bits, whose products an instruction sums in pairs: four lanes at a time.
template <bool is_narrow>
THIMBLE_TARGET_AVX2 void tile_avx2(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  for (int r = 0; r < tile.count; ++r) {
    alignas(32) std::int32_t sums[most_blocks * lanes];
    for (int block = 0; block < tile.blocks; ++block) {
      __m256i sum[4];
      for (__m256i& s : sum) s = _mm256_setzero_si256();
      const std::uint8_t* b = tile.panel + block * block_bytes;
      for (std::int64_t run = 0; run < tile.run_count; ++run) {
        const std::uint8_t* const a = tile.rows[r] + tile.runs[run];
        for (std::int64_t at = 0; at < tile.run_bytes; at += depth, b += tile.blocks * block_bytes) {
          std::int64_t bytes = 0;
          std::memcpy(&bytes, a + at, depth);
          const __m128i group = is_narrow ? _mm_set1_epi64x(bytes) : _mm_set1_epi32(static_cast<std::int32_t>(bytes));
          const __m256i value = _mm256_cvtepu8_epi16(group);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i weight = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16 * i)));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(value, weight));
          }
        }
      }
      for (int half = 0; half < 2; ++half) {
        const __m256i mixed = _mm256_hadd_epi32(sum[2 * half], sum[2 * half + 1]);  // lanes 0 1 4 5, 2 3 6 7
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + block * lanes + 8 * half),
                           _mm256_permute4x64_epi64(mixed, 0xD8));
      }
    }
    finish_lanes<is_narrow>(args, tile, r, sums);
  }
}

/// All-ones masks: GCC 12 takes the plain forms of these instructions for reads of uninitialized values.
inline constexpr __mmask16 all = 0xFFFF;
inline constexpr __mmask8 all_pairs = 0xFF;

/// Constants of a tile's epilogue.
struct Constants {
  __m512 least, most, residual_scale;
  __m512i zero, residual_zero;
};

/// y of up to 16 filters of a pixel, selected by `mask`.
THIMBLE_TARGET_QUANT inline void store_vnni(const QuantConvArgs& args, const QuantTile& tile, const Constants& c,
                                            __m512i sum, __m512i bias, __m512 scale, std::int64_t at, __mmask16 mask) {
  __m512 v = _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(all, _mm512_add_epi32(sum, bias)), scale);
  if (tile.residual != nullptr) {
    const __m512i codes = _mm512_maskz_cvtepu8_epi32(all, _mm_maskz_loadu_epi8(mask, tile.residual + at));
    const __m512 there = _mm512_maskz_cvtepi32_ps(all, _mm512_sub_epi32(codes, c.residual_zero));
    v = _mm512_add_ps(v, _mm512_mul_ps(there, c.residual_scale));
  }
  if (args.y_dtype == DType::f32) return _mm512_mask_storeu_ps(static_cast<float*>(tile.y) + at, mask, v);
  v = _mm512_maskz_min_ps(all, _mm512_maskz_max_ps(all, v, c.least), c.most);
  const __m512i codes = _mm512_add_epi32(_mm512_maskz_cvtps_epi32(all, v), c.zero);
  _mm_mask_storeu_epi8(static_cast<std::uint8_t*>(tile.y) + at, mask, _mm512_maskz_cvtepi32_epi8(all, codes));
}

template <int rows, int blocks, bool is_narrow>
THIMBLE_TARGET_QUANT void rows_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int depth = is_narrow ? 8 : 4;
  __m512i sum[rows][blocks];
  const std::uint8_t* a[rows];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    a[r] = tile.rows[r];
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) sum[r][i] = _mm512_setzero_si512();
  }
  const std::uint8_t* b = tile.panel;
  for (std::int64_t run = 0; run < tile.run_count; ++run) {
    const std::int64_t begin = tile.runs[run], end = begin + tile.run_bytes;
    for (std::int64_t at = begin; at < end; at += depth, b += blocks * block_bytes) {
      __m512i weight[blocks];
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) weight[i] = _mm512_load_si512(b + i * block_bytes);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) {
        __m512i value;
        if constexpr (is_narrow) {
          std::int64_t group;
          std::memcpy(&group, a[r] + at, sizeof(group));
          value = _mm512_set1_epi64(group);
        } else {
          std::int32_t group;
          std::memcpy(&group, a[r] + at, sizeof(group));
          value = _mm512_set1_epi32(group);
        }
#pragma GCC unroll 4
        for (int i = 0; i < blocks; ++i) sum[r][i] = _mm512_dpbusd_epi32(sum[r][i], value, weight[i]);
      }
    }
  }
  const Constants c{_mm512_set1_ps(static_cast<float>(args.low - args.zero)),
                    _mm512_set1_ps(static_cast<float>(args.high - args.zero)), _mm512_set1_ps(args.residual_scale),
                    _mm512_set1_epi32(args.zero), _mm512_set1_epi32(args.residual_zero)};
#pragma GCC unroll 4
  for (int i = 0; i < blocks; ++i) {
    const int left = tile.filters - i * lanes;
    const auto mask = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1U << (left > 0 ? left : 0)) - 1);
    const __m512i bias = _mm512_loadu_si512(tile.bias + i * lanes);
    const __m512 scale = _mm512_loadu_ps(tile.scale + i * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      if (r >= tile.count) break;
      __m512i s = sum[r][i];
      if constexpr (is_narrow) {
        s = _mm512_castsi256_si512(
            _mm512_maskz_cvtepi64_epi32(all_pairs, _mm512_add_epi32(s, _mm512_maskz_srli_epi64(all_pairs, s, 32))));
      }
      store_vnni(args, tile, c, s, bias, scale, r * tile.stride + i * lanes, mask);
    }
  }
}

template <int blocks, bool is_narrow>
void pick_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  constexpr int rows = rows_of(blocks);
  if (tile.count > rows / 2) return rows_vnni<rows, blocks, is_narrow>(args, tile);
  if (tile.count > 1) return rows_vnni<rows / 2, blocks, is_narrow>(args, tile);
  rows_vnni<1, blocks, is_narrow>(args, tile);
}

void tile_vnni(const QuantConvArgs& args, const QuantTile& tile) {
  if (tile.blocks == 4) return pick_vnni<4, false>(args, tile);
  if (tile.blocks == 2) return pick_vnni<2, false>(args, tile);
  pick_vnni<1, false>(args, tile);
}

#undef THIMBLE_TARGET_QUANT
#endif

}  // namespace quant_kernel_detail

QuantKernel quant_kernel([[maybe_unused]] DotUnit unit, bool is_narrow) noexcept {
  using namespace quant_kernel_detail;
#if defined(__x86_64__)
  if (unit == DotUnit::avx512) return is_narrow ? pick_vnni<1, true> : tile_vnni;
  if (unit == DotUnit::avx2) return is_narrow ? tile_avx2<true> : tile_avx2<false>;
#endif
  return is_narrow ? tile_generic<true> : tile_generic<false>;
}

}  // namespace thimble::kernels::quant_detail
