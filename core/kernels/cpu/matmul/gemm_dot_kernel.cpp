#include <thimble/core/kernels/cpu/matmul/gemm_dot_kernel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/variants.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels::gemm_detail {
namespace dot_kernel_detail {

inline constexpr int group_bytes = 4;

void nothing() {}
void nothing_for(int) {}

/// The bytes of row r of a in step s.
inline const std::uint8_t* row_of(const DotTile& tile, std::int64_t s, int r) noexcept {
  return s < tile.whole_steps ? tile.a + r * tile.a_stride + s * step_bytes : tile.a_tail + r * step_bytes;
}

template <class A>
void compute_generic(const DotTile& tile) {
  auto* const out = static_cast<std::int32_t*>(tile.out);
  for (int r = 0; r < tile.rows; ++r) {
    std::uint32_t sums[dot_columns] = {};
    for (std::int64_t s = 0; s < tile.steps(); ++s) {
      const std::uint8_t* const a = row_of(tile, s, r);
      const std::uint8_t* const b = tile.b + s * step_block_bytes;
      for (int i = 0; i < step_groups * dot_columns * group_bytes; ++i) {
        const int block = i / (step_block_bytes / 2), group = i / (block_columns * group_bytes) % step_groups;
        const int column = i / group_bytes % block_columns, byte = i % group_bytes;
        const int product = static_cast<A>(a[group * group_bytes + byte]) * static_cast<std::int8_t>(b[i]);
        sums[block * block_columns + column] += static_cast<std::uint32_t>(product);
      }
    }
    std::memcpy(out + r * tile.out_stride, sums, sizeof(sums));
  }
}

/// A float whose subnormal values count as zero, as dot products of bf16 take and give them. (A result that only
/// rounding lifts to the smallest normal number is zero on a unit and stays here.)
inline float flushed(float x) noexcept { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

/// The scalar twin of vdpbf16ps: the odd element of a pair first, each product fused with its addition.
struct ModelBf16 {
  static void run(const DotTile& tile) noexcept {
    for (int r = 0; r < tile.rows; ++r) {
      float sums[dot_columns] = {};
      for (std::int64_t s = 0; s < tile.steps(); ++s) {
        const std::uint8_t* const a = row_of(tile, s, r);
        for (int g = 0; g < step_groups; ++g) add_group(a + g * group_bytes, tile.b + s * step_block_bytes, g, sums);
      }
      std::memcpy(static_cast<float*>(tile.out) + r * tile.out_stride, sums, sizeof(sums));
    }
  }

  static void add_group(const std::uint8_t* a, const std::uint8_t* b, int group, float* sums) noexcept {
    std::uint32_t pair;
    std::memcpy(&pair, a, sizeof(pair));
    const float odd = value(pair & 0xFFFF0000U), even = value(pair << 16);
    for (int c = 0; c < dot_columns; ++c) {
      std::uint32_t other;
      const int at = c / block_columns * static_cast<int>(step_block_bytes / 2) + group * block_columns * group_bytes;
      std::memcpy(&other, b + at + c % block_columns * group_bytes, sizeof(other));
      const float sum = flushed(std::fma(odd, value(other & 0xFFFF0000U), sums[c]));
      sums[c] = flushed(std::fma(even, value(other << 16), sum));
    }
  }

  static float value(std::uint32_t bits) noexcept { return flushed(std::bit_cast<float>(bits)); }
};
void compute_model_bf16(const DotTile& tile) { run_variant<ModelBf16>(tile); }

#if defined(__x86_64__)

#define THIMBLE_TARGET_VNNI __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define THIMBLE_TARGET_BF16 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

inline std::int32_t group_at(const std::uint8_t* a) noexcept {
  std::int32_t group;
  std::memcpy(&group, a, sizeof(group));
  return group;
}

/// Four columns of a group, widened to 16 bits, make two sums of two products each; they are added up at the end.
template <class A, int rows>
THIMBLE_TARGET_AVX2 void rows_avx2(const DotTile& tile, int first_row, int column) {
  __m256i sum[rows][2];
  for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  const std::uint8_t* const b0 =
      tile.b + column / block_columns * (step_block_bytes / 2) + column % block_columns * group_bytes;
  for (std::int64_t s = 0; s < tile.steps(); ++s) {
    const std::uint8_t* a[rows];
    for (int r = 0; r < rows; ++r) a[r] = row_of(tile, s, first_row + r);
    const std::uint8_t* b = b0 + s * step_block_bytes;
    for (int g = 0; g < step_groups; ++g, b += block_columns * group_bytes) {
      const __m256i left = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
      const __m256i right = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16)));
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const __m128i bytes = _mm_set1_epi32(group_at(a[r] + g * group_bytes));
        __m256i value;
        if constexpr (std::is_signed_v<A>) {
          value = _mm256_cvtepi8_epi16(bytes);
        } else {
          value = _mm256_cvtepu8_epi16(bytes);
        }
        sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(value, left));
        sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(value, right));
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    // hadd works in halves of 128 bits: columns 0 1 4 5, 2 3 6 7.
    const __m256i mixed = _mm256_hadd_epi32(sum[r][0], sum[r][1]);
    auto* const out = static_cast<std::int32_t*>(tile.out) + (first_row + r) * tile.out_stride + column;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(mixed, 0xD8));
  }
}
template <class A>
void compute_avx2(const DotTile& tile) {
  for (int column = 0; column < dot_columns; column += 8) {
    int r = 0;
    for (; r + 4 <= tile.rows; r += 4) rows_avx2<A, 4>(tile, r, column);
    for (; r < tile.rows; ++r) rows_avx2<A, 1>(tile, r, column);
  }
}

/// Steps of k that are worked on at a time: a panel's part then stays in the first-level cache for all rows of a tile.
inline constexpr std::int64_t vnni_steps = 12;

/// sum += a b over `steps` steps. `asks`: for the lines `ahead` bytes behind those of b.
template <class A, int rows, int blocks, bool asks>
THIMBLE_TARGET_VNNI THIMBLE_ALWAYS_INLINE void add_groups(const std::uint8_t* a, std::int64_t stride,
                                                          const std::uint8_t* b, std::int64_t steps, std::int64_t ahead,
                                                          __m512i (&sum)[rows][blocks]) {
  const std::uint8_t* row[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) row[r] = a + r * stride;
  for (std::int64_t s = 0; s < steps; ++s, b += step_block_bytes / 2) {
    const std::uint8_t* const end = b + step_block_bytes / 2;
    for (; b != end; b += 64) {
      __m512i columns[blocks];
#pragma GCC unroll 2
      for (int i = 0; i < blocks; ++i) {
        const std::uint8_t* const line = b + i * (step_block_bytes / 2);
        columns[i] = _mm512_load_si512(line);
        if constexpr (asks) __builtin_prefetch(line + ahead);
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const __m512i value = _mm512_set1_epi32(group_at(row[r]));
        row[r] += group_bytes;
#pragma GCC unroll 2
        for (int i = 0; i < blocks; ++i) {
          sum[r][i] = std::is_signed_v<A> ? _mm512_dpbusd_epi32(sum[r][i], columns[i], value)
                                          : _mm512_dpbusd_epi32(sum[r][i], value, columns[i]);
        }
      }
    }
  }
}

/// Adds steps [first, last) to the sums of some rows, which begin there when first is 0. `asks`: for as many steps
/// behind them, of this panel or of the next one.
template <class A, int rows, int blocks, bool asks = false>
THIMBLE_TARGET_VNNI void rows_vnni(const DotTile& tile, int first_row, std::int64_t first, std::int64_t last) {
  __m512i sum[rows][blocks];
  auto* const out = static_cast<std::int32_t*>(tile.out) + first_row * tile.out_stride;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < blocks; ++i) {
      auto* const to = out + r * tile.out_stride + i * block_columns;
      if (first != 0) {
        sum[r][i] = _mm512_loadu_si512(to);
      } else {
        sum[r][i] = std::is_signed_v<A> ? _mm512_set1_epi32(tile.starts[first_row + r]) : _mm512_setzero_si512();
      }
    }
  }
  const std::int64_t whole = std::min(last, tile.whole_steps) - first;
  const std::uint8_t* const b = tile.b + first * step_block_bytes;
  add_groups<A, rows, blocks, asks>(tile.a + first_row * tile.a_stride + first * step_bytes, tile.a_stride, b, whole,
                                    (last - first) * step_block_bytes, sum);
  if (last > tile.whole_steps) {
    add_groups<A, rows, blocks, false>(tile.a_tail + first_row * step_bytes, step_bytes, b + whole * step_block_bytes,
                                       1, 0, sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < blocks; ++i) _mm512_storeu_si512(out + r * tile.out_stride + i * block_columns, sum[r][i]);
  }
}
/// Long panels come from far: the last whole rows of a part ask for the part that follows.
template <class A, int blocks>
void part_vnni(const DotTile& tile, std::int64_t first, std::int64_t last) {
  const bool asks = tile.steps() > vnni_steps;
  int r = 0;
  for (; tile.rows - r >= (asks ? 16 : 8); r += 8) rows_vnni<A, 8, blocks>(tile, r, first, last);
  if (tile.rows - r >= 8) rows_vnni<A, 8, blocks, true>(tile, r, first, last), r += 8;
  if (tile.rows - r >= 4) rows_vnni<A, 4, blocks>(tile, r, first, last), r += 4;
  for (; r < tile.rows; ++r) rows_vnni<A, 1, blocks>(tile, r, first, last);
}
template <class A>
void compute_vnni(const DotTile& tile) {
  const auto part = tile.columns > block_columns ? part_vnni<A, 2> : part_vnni<A, 1>;
  const std::int64_t steps = tile.steps();
  if (steps <= vnni_steps) return part(tile, 0, steps);
  const std::int64_t parts = (steps + vnni_steps - 1) / vnni_steps;
  for (std::int64_t i = 0; i < parts; ++i) part(tile, steps * i / parts, steps * (i + 1) / parts);
}

/// -128 times the sum of each row of a signed a, four rows at a time; rows behind the last repeat it.
THIMBLE_TARGET_VNNI void start_vnni(const DotTile& tile, std::int32_t* starts) {
  const __m256i ones = _mm256_set1_epi8(1);
  for (int r = 0; r < tile.rows; r += 4) {
    __m256i sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] = _mm256_setzero_si256();
    for (std::int64_t s = 0; s < tile.steps(); ++s) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto* const a = reinterpret_cast<const __m256i*>(row_of(tile, s, std::min(r + i, tile.rows - 1)));
        sum[i] = _mm256_dpbusd_epi32(sum[i], ones, _mm256_loadu_si256(a));
        sum[i] = _mm256_dpbusd_epi32(sum[i], ones, _mm256_loadu_si256(a + 1));
      }
    }
    // hadd works in halves of 128 bits: each holds a part of the four rows' sums.
    const __m256i parts = _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(starts + r),
                     _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sums, 7)));
  }
}

template <int rows>
THIMBLE_TARGET_BF16 void rows_bf16(const DotTile& tile, int first_row) {
  __m512 sum[rows][2];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  const std::uint8_t* b = tile.b;
  for (std::int64_t s = 0; s < tile.steps(); ++s, b += step_block_bytes) {
    const std::uint8_t* a[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) a[r] = row_of(tile, s, first_row + r);
    for (int g = 0; g < step_groups; ++g) {
      const auto left = (__m512bh)_mm512_load_si512(b + g * 64);
      const auto right = (__m512bh)_mm512_load_si512(b + g * 64 + step_block_bytes / 2);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const auto value = (__m512bh)_mm512_set1_epi32(group_at(a[r] + g * group_bytes));
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], value, left);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], value, right);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    float* const out = static_cast<float*>(tile.out) + (first_row + r) * tile.out_stride;
    _mm512_storeu_ps(out, sum[r][0]);
    _mm512_storeu_ps(out + block_columns, sum[r][1]);
  }
}
void compute_bf16(const DotTile& tile) {
  int r = 0;
  for (; r + 8 <= tile.rows; r += 8) rows_bf16<8>(tile, r);
  for (; r < tile.rows; ++r) rows_bf16<1>(tile, r);
}

#undef THIMBLE_TARGET_VNNI
#undef THIMBLE_TARGET_BF16
#endif

template <class A>
inline constexpr DotKernel generic{nothing_for, compute_generic<A>, nothing};
inline constexpr DotKernel model_bf16{nothing_for, compute_model_bf16, nothing};
#if defined(__x86_64__)
template <class A>
inline constexpr DotKernel avx2{nothing_for, compute_avx2<A>, nothing};
template <class A>
inline constexpr DotKernel vnni =
    std::is_signed_v<A> ? DotKernel{nothing_for, compute_vnni<A>, nothing, start_vnni, 0x80}
                        : DotKernel{nothing_for, compute_vnni<A>, nothing};
inline constexpr DotKernel avx512_bf16{nothing_for, compute_bf16, nothing};
#endif

template <class A>
const DotKernel& int8_kernel([[maybe_unused]] DotUnit unit) noexcept {
#if defined(__x86_64__)
  if (unit == DotUnit::amx) return amx_kernel(std::is_signed_v<A> ? DType::i8 : DType::u8);
  if (unit == DotUnit::avx512) return vnni<A>;
  if (unit == DotUnit::avx2) return avx2<A>;
#endif
  return generic<A>;
}

}  // namespace dot_kernel_detail

const DotKernel& dot_kernel(DotUnit unit, DType a_dtype) noexcept {
  using namespace dot_kernel_detail;
#if defined(__x86_64__)
  if (a_dtype == DType::bf16 && unit == DotUnit::amx) return amx_kernel(DType::bf16);
  if (a_dtype == DType::bf16 && unit == DotUnit::avx512) return avx512_bf16;
#endif
  if (a_dtype == DType::bf16) return model_bf16;
  return a_dtype == DType::u8 ? int8_kernel<std::uint8_t>(unit) : int8_kernel<std::int8_t>(unit);
}

}  // namespace thimble::kernels::gemm_detail

namespace thimble::kernels {

std::string_view to_string(DotUnit unit) noexcept {
  constexpr std::string_view names[] = {"generic", "avx2", "avx512", "amx"};
  return names[static_cast<int>(unit)];
}

bool is_supported(DotUnit unit, [[maybe_unused]] DType dtype) noexcept {
  if (unit == DotUnit::generic) return true;
#if defined(__x86_64__)
  const bool is_bf16 = dtype == DType::bf16;
  if (unit == DotUnit::avx2) return !is_bf16 && is_supported(Isa::avx2);
  if (!is_supported(Isa::avx512)) return false;
  if (unit == DotUnit::amx) return gemm_detail::has_amx(dtype);
  return is_bf16 ? __builtin_cpu_supports("avx512bf16") != 0 : __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

std::optional<DotUnit> best_dot_unit(DType dtype) noexcept {
  if (isa() == Isa::avx512) {
    for (const DotUnit unit : {DotUnit::amx, DotUnit::avx512}) {
      if (is_supported(unit, dtype)) return unit;
    }
  }
  if (dtype == DType::bf16) return std::nullopt;
  return isa() >= Isa::avx2 && is_supported(DotUnit::avx2, dtype) ? DotUnit::avx2 : DotUnit::generic;
}

}  // namespace thimble::kernels
