#include <thimble/core/kernels/cpu/base/narrow_float.h>

#include <thimble/core/kernels/cpu/base/narrow_avx2.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/core/numbers/convert.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace thimble::kernels {
namespace narrow_float_detail {

// The codec in core/numbers/minifloat.h is branch-free, so these loops vectorize for the instruction set of the
// function around them. Intrinsics pay only for the 16-bit formats.

template <class T>
THIMBLE_ALWAYS_INLINE void load_loop(const void* src, float* __restrict dst, std::int64_t n) {
  const T* from = static_cast<const T*>(src);
  for (std::int64_t i = 0; i < n; ++i) dst[i] = from[i];
}

template <class T>
THIMBLE_ALWAYS_INLINE void store_loop(const float* __restrict src, void* dst, std::int64_t n, Fp8Overflow overflow) {
  T* to = static_cast<T*>(dst);
  for (std::int64_t i = 0; i < n; ++i) to[i] = convert_value<T>(src[i], overflow);
}

template <class T>
void load_generic(const void* src, float* dst, std::int64_t n) {
  load_loop<T>(src, dst, n);
}

template <class T>
void store_generic(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow) {
  store_loop<T>(src, dst, n, overflow);
}

constexpr NarrowFloatLoops generic_loops = {
    {load_generic<f16>, load_generic<bf16>, load_generic<f8e4m3>, load_generic<f8e5m2>},
    {store_generic<f16>, store_generic<bf16>, store_generic<f8e4m3>, store_generic<f8e5m2>}};

#if defined(__x86_64__)

template <class T>
THIMBLE_TARGET_AVX2 void load_avx2(const void* src, float* dst, std::int64_t n) {
  load_loop<T>(src, dst, n);
}

template <class T>
THIMBLE_TARGET_AVX2 void store_avx2(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow) {
  store_loop<T>(src, dst, n, overflow);
}

template <class T>
THIMBLE_TARGET_F16C void load_16_bits(const void* src, float* dst, std::int64_t n) {
  const T* from = static_cast<const T*>(src);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, load_8(from + i));
  if (i == n) return;
  if (n >= 8) return _mm256_storeu_ps(dst + n - 8, load_8(from + n - 8));  // the rest, with some elements twice
  load_loop<T>(from, dst, n);
}

template <class T>
THIMBLE_TARGET_F16C void store_16_bits(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow) {
  T* to = static_cast<T*>(dst);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_16(src + i, to + i);
  if (i == n) return;
  if (n >= 16) return store_16(src + n - 16, to + n - 16);
  store_loop<T>(src, to, n, overflow);
}

template <class T>
THIMBLE_TARGET_AVX512 void load_avx512(const void* src, float* dst, std::int64_t n) {
  load_loop<T>(src, dst, n);
}

template <class T>
THIMBLE_TARGET_AVX512 void store_avx512(const float* src, void* dst, std::int64_t n, Fp8Overflow overflow) {
  store_loop<T>(src, dst, n, overflow);
}

// The masked forms with all lanes set compile to the plain instructions, without g++ 12's false warning about them.
constexpr __mmask16 all_lanes = 0xFFFF;

/// Calls body(i, lanes) for every sixteen of n elements, with a mask of the lanes in use: short rows and the ends of
/// long ones are as fast as whole vectors.
template <class Body>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE void by_sixteen(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, all_lanes);
  if (i < n) body(i, static_cast<__mmask16>((1U << (n - i)) - 1U));
}

// vcvtph2ps makes NaN quiet and keeps its payload, as Format::decode does.
THIMBLE_TARGET_AVX512 void load_f16_avx512(const void* src, float* dst, std::int64_t n) {
  const std::uint16_t* from = static_cast<const std::uint16_t*>(src);
  by_sixteen(n, [&](std::int64_t i, __mmask16 lanes) THIMBLE_TARGET_AVX512 {
    const __m256i codes = _mm256_maskz_loadu_epi16(lanes, from + i);
    _mm512_mask_storeu_ps(dst + i, lanes, _mm512_maskz_cvtph_ps(all_lanes, codes));
  });
}

THIMBLE_TARGET_AVX512 void load_bf16_avx512(const void* src, float* dst, std::int64_t n) {
  const std::uint16_t* from = static_cast<const std::uint16_t*>(src);
  by_sixteen(n, [&](std::int64_t i, __mmask16 lanes) THIMBLE_TARGET_AVX512 {
    const __m512i codes = _mm512_maskz_cvtepu16_epi32(all_lanes, _mm256_maskz_loadu_epi16(lanes, from + i));
    _mm512_mask_storeu_epi32(dst + i, lanes, _mm512_maskz_slli_epi32(all_lanes, codes, 16));
  });
}

// vcvtps2ph gives a NaN the upper bits of its payload: masking them away leaves the canonical 0x7E00 / 0xFE00.
constexpr short canonical_nan_mask = static_cast<short>(0xFE00);

THIMBLE_TARGET_AVX512 void store_f16_avx512(const float* src, void* dst, std::int64_t n, Fp8Overflow) {
  std::uint16_t* to = static_cast<std::uint16_t*>(dst);
  const __m256i mask = _mm256_set1_epi16(canonical_nan_mask);
  by_sixteen(n, [&](std::int64_t i, __mmask16 lanes) THIMBLE_TARGET_AVX512 {
    const __m512 values = _mm512_maskz_loadu_ps(lanes, src + i);
    const __m256i codes = _mm512_maskz_cvtps_ph(all_lanes, values, _MM_FROUND_TO_NEAREST_INT);
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    _mm256_mask_storeu_epi16(to + i, lanes, _mm256_mask_mov_epi16(codes, nan, _mm256_and_si256(codes, mask)));
  });
}

THIMBLE_TARGET_AVX512 void store_bf16_avx512(const float* src, void* dst, std::int64_t n, Fp8Overflow) {
  std::uint16_t* to = static_cast<std::uint16_t*>(dst);
  const __m512i half = _mm512_set1_epi32(0x7FFF), one = _mm512_set1_epi32(1);
  const __m512i nan = _mm512_set1_epi32(0x7FC00000), sign = _mm512_set1_epi32(INT32_MIN);
  by_sixteen(n, [&](std::int64_t i, __mmask16 lanes) THIMBLE_TARGET_AVX512 {
    const __m512 values = _mm512_maskz_loadu_ps(lanes, src + i);
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(all_lanes, bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, half), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    const __m512i code = _mm512_mask_or_epi32(rounded, is_nan, nan, _mm512_and_si512(bits, sign));
    const __m512i upper = _mm512_maskz_srli_epi32(all_lanes, code, 16);
    _mm256_mask_storeu_epi16(to + i, lanes, _mm512_maskz_cvtepi32_epi16(all_lanes, upper));
  });
}

NarrowFloatLoops avx2_loops() noexcept {
  const bool f16c = this_processor().has_f16c;
  return {{f16c ? load_16_bits<f16> : load_avx2<f16>, load_16_bits<bf16>, load_avx2<f8e4m3>, load_avx2<f8e5m2>},
          {f16c ? store_16_bits<f16> : store_avx2<f16>, store_16_bits<bf16>, store_avx2<f8e4m3>, store_avx2<f8e5m2>}};
}

constexpr NarrowFloatLoops avx512_loops = {
    {load_f16_avx512, load_bf16_avx512, load_avx512<f8e4m3>, load_avx512<f8e5m2>},
    {store_f16_avx512, store_bf16_avx512, store_avx512<f8e4m3>, store_avx512<f8e5m2>}};

#endif

}  // namespace narrow_float_detail

const NarrowFloatLoops& narrow_float_loops(Isa isa) noexcept {
#if defined(__x86_64__)
  static const NarrowFloatLoops avx2_table = narrow_float_detail::avx2_loops();
  if (isa == Isa::avx512) return narrow_float_detail::avx512_loops;
  if (isa == Isa::avx2) return avx2_table;
#endif
  static_cast<void>(isa);
  return narrow_float_detail::generic_loops;
}

}  // namespace thimble::kernels
