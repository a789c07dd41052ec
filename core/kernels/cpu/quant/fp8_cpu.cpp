#include <algorithm>
#include <atomic>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/threads/parallel.h>

#if defined(__x86_64__)

#include <immintrin.h>

namespace thimble::kernels {
namespace fp8_avx512_detail {

// The masked forms compile to the plain instructions if all lanes are set, without g++ 12's false warning about the
// latter.
constexpr __mmask16 all_lanes = 0xFFFF;

__mmask16 lanes(std::int64_t n) noexcept { return n < 16 ? static_cast<__mmask16>((1u << n) - 1) : all_lanes; }

/// Constants of a format's rounding, as bits of floats.
template <class F>
struct Rounding {
  using Format = typename F::Format;
  static constexpr int shift = 23 - Format::mantissa_bits;
  static constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(127 - Format::bias + 1) << 23;
  // the largest value: its code's bits, with a float's bias
  static constexpr std::uint32_t largest =
      (Format::max_code + (static_cast<std::uint32_t>(127 - Format::bias) << Format::mantissa_bits)) << shift;
};

THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i constant(std::uint32_t bits) {
  return _mm512_set1_epi32(static_cast<int>(bits));
}

/// `code` with the sign of `bits` in the position of an FP8 sign.
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i with_sign(__m512i code, __m512i bits) {
  constexpr int a_or_b_and_c = 0xF8;
  return _mm512_ternarylogic_epi32(code, _mm512_maskz_srli_epi32(all_lanes, bits, 24), constant(0x80), a_or_b_and_c);
}

/// Saturating codes of numbers whose magnitudes are clamped first. Adding a power of two whose last place is the code's
/// (of the format's smallest normal for smaller values) rounds both normal and subnormal codes to nearest even; the sum
/// minus that power is the significand, and a carry out of it runs into the exponent. A subnormal float vanishes in the
/// sum, flushed or not. NaN gives any code.
template <class F>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i code_of(__m512i magnitude, __m512i bits) {
  using R = Rounding<F>;
  const __m512i clamped = _mm512_maskz_min_epu32(all_lanes, magnitude, constant(R::largest));
  const __m512i exponent = _mm512_maskz_max_epu32(all_lanes, _mm512_and_si512(clamped, constant(quant::infinity_bits)),
                                                  constant(R::smallest_normal));
  const __m512i anchor = _mm512_add_epi32(exponent, constant(static_cast<std::uint32_t>(R::shift) << 23));
  const __m512i sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(clamped), _mm512_castsi512_ps(anchor)));
  const __m512i above = _mm512_sub_epi32(exponent, constant(R::smallest_normal));
  const __m512i code =
      _mm512_add_epi32(_mm512_sub_epi32(sum, anchor), _mm512_maskz_srli_epi32(all_lanes, above, R::shift));
  return with_sign(code, bits);
}

THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i magnitude_of(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), constant(0x7FFFFFFFu));
}

/// fp8_code(value, inverse) for 16 values.
template <class F>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i code_of_tensor(__m512 value, __m512 inverse) {
  const __m512i infinity = constant(quant::infinity_bits);
  const __m512 x = _mm512_mul_ps(value, inverse);
  const __m512i magnitude = magnitude_of(x);
  __m512i code = code_of<F>(magnitude, _mm512_castps_si512(x));
  if (_mm512_cmp_epu32_mask(magnitude, infinity, _MM_CMPINT_NLT) == 0) [[likely]] {  // all are finite
    return code;
  }
  const __mmask16 of_infinity = _mm512_cmp_epu32_mask(magnitude_of(value), infinity, _MM_CMPINT_EQ);
  const std::uint32_t name = fp8_infinity_code<quant::Float8Code<F>>();
  code = _mm512_mask_mov_epi32(code, of_infinity, with_sign(constant(name), _mm512_castps_si512(value)));
  const __mmask16 is_nan = _mm512_cmp_epu32_mask(magnitude, infinity, _MM_CMPINT_NLE);
  return _mm512_mask_mov_epi32(code, is_nan, constant(0x7F));
}

/// Float8Code<F>::encode for 16 numbers.
template <class F>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i code_of_number(__m512 x) {
  const __m512i magnitude = magnitude_of(x), bits = _mm512_castps_si512(x);
  const __mmask16 is_nan = _mm512_cmp_epu32_mask(magnitude, constant(quant::infinity_bits), _MM_CMPINT_NLE);
  const __m512i nan = with_sign(constant(F::Format::nan_code), bits);
  return _mm512_mask_mov_epi32(code_of<F>(magnitude, bits), is_nan, nan);
}

template <class F>
THIMBLE_TARGET_AVX512 void encode_tensor(const float* values, float inverse, std::uint8_t* codes, std::int64_t n) {
  const __m512 factor = _mm512_set1_ps(inverse);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 on = lanes(n - i);
    const __m512i code = code_of_tensor<F>(_mm512_maskz_loadu_ps(on, values + i), factor);
    _mm512_mask_cvtepi32_storeu_epi8(codes + i, on, code);
  }
}

template <class F>
THIMBLE_TARGET_AVX512 void encode_numbers(const float* values, const float* inverse, std::uint8_t* codes,
                                          std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 on = lanes(n - i);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(on, values + i), _mm512_maskz_loadu_ps(on, inverse + i));
    _mm512_mask_cvtepi32_storeu_epi8(codes + i, on, code_of_number<F>(x));
  }
}

/// Values of the 128 codes without a sign, as bits of bf16.
template <class F>
struct Values {
  alignas(64) std::uint16_t bits[128];

  Values() noexcept {
    for (int i = 0; i < 128; ++i) bits[i] = fp8_value_bits<quant::Float8Code<F>>(static_cast<std::uint8_t>(i));
  }
  static const Values& all() noexcept {
    static const Values values;
    return values;
  }
};

/// A table of 128 entries in four registers, looked up by 32 codes at a time.
struct LookUp {
  __m512i first, second, third, fourth;

  THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE explicit LookUp(const std::uint16_t* bits)
      : first(_mm512_load_si512(bits)),
        second(_mm512_load_si512(bits + 32)),
        third(_mm512_load_si512(bits + 64)),
        fourth(_mm512_load_si512(bits + 96)) {}

  THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i operator()(__m256i bytes) const {
    const __m512i code = _mm512_cvtepu8_epi16(bytes);
    const __m512i lower = _mm512_permutex2var_epi16(first, code, second);
    const __m512i upper = _mm512_permutex2var_epi16(third, code, fourth);
    const __m512i value = _mm512_mask_mov_epi16(lower, _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40)), upper);
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_or_si512(value, sign);
  }
};

THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __mmask32 lanes_of_32(std::int64_t n) {
  return n < 32 ? (__mmask32{1} << n) - 1 : ~__mmask32{0};
}

template <class F>
THIMBLE_TARGET_AVX512 void decode(const std::uint8_t* codes, std::uint16_t* bf16, std::int64_t n) {
  const LookUp look_up(Values<F>::all().bits);
  for (std::int64_t i = 0; i < n; i += 32) {
    const __mmask32 on = lanes_of_32(n - i);
    _mm512_mask_storeu_epi16(bf16 + i, on, look_up(_mm256_maskz_loadu_epi8(on, codes + i)));
  }
}

// A bf16 is the upper half of a float, and so is the product, which is exact in bf16.
template <class F>
THIMBLE_TARGET_AVX512 void decode_scaled(const std::uint8_t* codes, float factor, std::uint16_t* bf16, std::int64_t n) {
  const LookUp look_up(Values<F>::all().bits);
  const __m512 scale = _mm512_set1_ps(factor);
  const __m512i upper_half = constant(0xFFFF0000u);
  for (std::int64_t i = 0; i < n; i += 32) {
    const __mmask32 on = lanes_of_32(n - i);
    const __m512i values = look_up(_mm256_maskz_loadu_epi8(on, codes + i));
    // as floats: odd positions in place, even positions moved up
    const __m512i odd = _mm512_and_si512(values, upper_half), even = _mm512_maskz_slli_epi32(all_lanes, values, 16);
    const __m512i of_odd = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(odd), scale));
    const __m512i of_even = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(even), scale));
    const __m512i both =
        _mm512_or_si512(_mm512_and_si512(of_odd, upper_half), _mm512_maskz_srli_epi32(all_lanes, of_even, 16));
    _mm512_mask_storeu_epi16(bf16 + i, on, both);
  }
}

}  // namespace fp8_avx512_detail

void fp8_encode_avx512(DType code, const float* values, float inverse, std::uint8_t* codes, std::int64_t n) noexcept {
  using namespace fp8_avx512_detail;
  code == DType::f8e4m3 ? encode_tensor<f8e4m3>(values, inverse, codes, n)
                        : encode_tensor<f8e5m2>(values, inverse, codes, n);
}

void fp8_encode_avx512(DType code, const float* values, const float* inverse, std::uint8_t* codes,
                       std::int64_t n) noexcept {
  using namespace fp8_avx512_detail;
  code == DType::f8e4m3 ? encode_numbers<f8e4m3>(values, inverse, codes, n)
                        : encode_numbers<f8e5m2>(values, inverse, codes, n);
}

void fp8_decode_avx512(DType code, const std::uint8_t* codes, std::uint16_t* bf16, std::int64_t n) noexcept {
  using namespace fp8_avx512_detail;
  code == DType::f8e4m3 ? decode<f8e4m3>(codes, bf16, n) : decode<f8e5m2>(codes, bf16, n);
}

void fp8_decode_avx512(DType code, const std::uint8_t* codes, float factor, std::uint16_t* bf16,
                       std::int64_t n) noexcept {
  using namespace fp8_avx512_detail;
  code == DType::f8e4m3 ? decode_scaled<f8e4m3>(codes, factor, bf16, n) : decode_scaled<f8e5m2>(codes, factor, bf16, n);
}

}  // namespace thimble::kernels

#endif

namespace thimble::kernels {

namespace fp8_detail {

constexpr std::int64_t tile = quant_tile;
constexpr std::int64_t grain = 32 * tile;  // values that pay for another thread

template <class F>
void with_code(DType dtype, F&& f) {
  dtype == DType::f8e4m3 ? f(quant::Float8Code<f8e4m3>{}) : f(quant::Float8Code<f8e5m2>{});
}

// Loops over n <= tile values, f32 and codes. AVX-512 has hand-written ones with the same bits.
template <class Code>
struct EncodeLoop {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, float inverse, std::uint8_t* __restrict codes,
                                        std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) codes[i] = fp8_code<Code>(values[i], inverse);
  }
};
void encode(DType dtype, const float* values, float inverse, std::uint8_t* codes, std::int64_t n) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return fp8_encode_avx512(dtype, values, inverse, codes, n);
#endif
  with_code(dtype, [&]<class Code>(const Code&) { run_variant<EncodeLoop<Code>>(values, inverse, codes, n); });
}

// Values as bits of bf16, times a factor.
template <class Code>
struct DecodeLoop {
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, std::uint16_t* __restrict to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = fp8_value_bits<Code>(codes[i]);
  }
  THIMBLE_ALWAYS_INLINE static void run(const std::uint8_t* codes, float factor, std::uint16_t* __restrict to,
                                        std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = fp8_value_bits<Code>(codes[i], factor);
  }
};
template <class... Factor>
void decode(DType dtype, const std::uint8_t* codes, std::uint16_t* to, std::int64_t n, Factor... factor) {
#if defined(__x86_64__)
  if (isa() == Isa::avx512) return fp8_decode_avx512(dtype, codes, factor..., to, n);
#endif
  with_code(dtype, [&]<class Code>(const Code&) { run_variant<DecodeLoop<Code>>(codes, factor..., to, n); });
}

struct Largest {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, std::uint32_t* most, std::int64_t n) {
    const std::uint32_t largest = largest_bits(values, n);
    *most = *most < largest ? largest : *most;
  }
};

/// f(first, values as f32, n) for tiles of a dense tensor, by threads.
template <class F>
void for_tiles(const void* values, DType dtype, std::int64_t count, F&& f) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float buffer[tile];
    for (std::int64_t first = begin; first < end; first += tile) {
      const std::int64_t n = std::min(tile, end - first);
      const auto* const from = static_cast<const std::byte*>(values) + first * size;
      const float* loaded = buffer;
      if (dtype == DType::f32) {
        loaded = reinterpret_cast<const float*>(from);
      } else {
        load_f32(from, dtype, 1, buffer, n);
      }
      f(first, loaded, n);
    }
  });
}

std::uint32_t amax_bits(const void* values, DType dtype, std::int64_t count) {
  std::atomic<std::uint32_t> amax{0};
  for_tiles(values, dtype, count, [&](std::int64_t, const float* loaded, std::int64_t n) {
    std::uint32_t most = 0;
    run_variant<Largest>(loaded, &most, n);
    for (std::uint32_t now = amax.load(); now < most && !amax.compare_exchange_weak(now, most);) continue;
  });
  return amax.load();
}

void record(const Fp8ScaleArgs& a, float amax) {
  if (!fp8_is_finite(amax)) return;
  const Fp8Place place = fp8_place(a.steps, a.step, a.length);
  float& kept = a.history[place.index];
  kept = place.is_new ? amax : std::max(kept, amax);
  const float most = *std::max_element(a.history, a.history + a.length);
  *a.next_scale = most > 0 ? fp8_scale_from(most, a.code_dtype, a.margin) : 0.0f;
}

void scale(const Fp8ScaleArgs& a) {
  const bool is_known = a.known != nullptr && *a.known != 0;
  if (is_known) *a.scale = *a.known;
  if (is_known && a.history == nullptr) return;
  const float amax = bit_cast<float>(amax_bits(a.values, a.dtype, a.count));
  if (!is_known) *a.scale = fp8_scale_from(amax, a.code_dtype, a.margin);
  if (a.history != nullptr) record(a, amax);
}

void cast(const Fp8CastArgs& a) {
  const float inverse = 1.0f / *a.scale;
  for_tiles(a.values, a.dtype, a.count, [&](std::int64_t first, const float* values, std::int64_t n) {
    alignas(64) std::uint8_t buffer[tile];
    std::uint8_t* const codes = a.codes != nullptr ? a.codes + first : buffer;
    encode(a.code_dtype, values, inverse, codes, n);
    if (a.decoded != nullptr) decode(a.code_dtype, codes, reinterpret_cast<std::uint16_t*>(a.decoded + first), n);
  });
}

void decode(const Fp8DecodeArgs& a) {
  const std::int64_t across = (a.columns + tile - 1) / tile;
  parallel_for(a.rows * across, grain / tile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t r = part / across, c = part % across * tile, n = std::min(tile, a.columns - c);
      const std::uint8_t* const codes = a.codes + (a.row + r) * a.row_stride + a.column + c;
      auto* const to = reinterpret_cast<std::uint16_t*>(a.decoded + r * a.columns + c);
      if (a.scales == nullptr) {
        decode(a.code_dtype, codes, to, n);
        continue;
      }
      const std::int64_t first = (a.row + r) / a.block_rows * a.blocks_across;
      for (std::int64_t i = 0; i < n;) {
        const std::int64_t block = (a.column + c + i) / a.block_columns;
        const std::int64_t stop = std::min(n, (block + 1) * a.block_columns - a.column - c);
        decode(a.code_dtype, codes + i, to + i, stop - i, quant::load_scale(a.scales, DType::u8, first + block));
        i = stop;
      }
    }
  });
}

}  // namespace fp8_detail

const Fp8Kernels fp8_cpu{
    .scale = fp8_detail::scale,
    .cast = fp8_detail::cast,
    .decode = fp8_detail::decode,
};

const Fp8Kernels& fp8_kernels(memory::Device device) {
  return table_for(device, "fp8", fp8_cpu, fp8_cuda, fp8_cuda_sizes);
}

}  // namespace thimble::kernels
