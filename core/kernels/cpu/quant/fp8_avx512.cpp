#include <thimble/core/kernels/cpu/quant/fp8_avx512.h>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/shared/fp8_code.h>

#if defined(__x86_64__)

#include <immintrin.h>

namespace thimble::kernels {
namespace fp8_avx512_detail {

// The masked forms compile to the plain instructions where all lanes are set, without g++ 12's false warning about
// them.
constexpr __mmask16 all_lanes = 0xFFFF;

__mmask16 lanes(std::int64_t n) noexcept { return n < 16 ? static_cast<__mmask16>((1u << n) - 1) : all_lanes; }

/// The numbers of a format's rounding, as bits of floats.
template <class F>
struct Rounding {
  using Format = typename F::Format;
  static constexpr int shift = 23 - Format::mantissa_bits;
  static constexpr std::uint32_t smallest_normal = static_cast<std::uint32_t>(127 - Format::bias + 1) << 23;
  // of the largest value: its code's bits, with the bias of a float
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

/// fp8_code(value, inverse) of 16 values.
template <class F>
THIMBLE_TARGET_AVX512 THIMBLE_ALWAYS_INLINE __m512i code_of_tensor(__m512 value, __m512 inverse) {
  const __m512i infinity = constant(quant::infinity_bits);
  const __m512 x = _mm512_mul_ps(value, inverse);
  const __m512i magnitude = magnitude_of(x);
  __m512i code = code_of<F>(magnitude, _mm512_castps_si512(x));
  if (_mm512_cmp_epu32_mask(magnitude, infinity, _MM_CMPINT_NLT) == 0) [[likely]] {  // all of them are finite
    return code;
  }
  const __mmask16 of_infinity = _mm512_cmp_epu32_mask(magnitude_of(value), infinity, _MM_CMPINT_EQ);
  const std::uint32_t name = fp8_infinity_code<quant::Float8Code<F>>();
  code = _mm512_mask_mov_epi32(code, of_infinity, with_sign(constant(name), _mm512_castps_si512(value)));
  const __mmask16 is_nan = _mm512_cmp_epu32_mask(magnitude, infinity, _MM_CMPINT_NLE);
  return _mm512_mask_mov_epi32(code, is_nan, constant(0x7F));
}

/// Float8Code<F>::encode of 16 numbers.
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

/// A table of 128 in four registers, looked up by 32 codes at a time.
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
