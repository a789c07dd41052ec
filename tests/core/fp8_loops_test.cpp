// FP8 loops written for AVX-512 (core/kernels/cpu/quant/quant_loops.h), compared with the codec value by value.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/shared/fp8_code.h>

#include "support/catch.h"
#include "support/skip.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

namespace thimble {
namespace {

/// Calls f(code) with the code of each format.
template <class F>
void for_formats(F&& f) {
  f(quant::Float8Code<f8e4m3>{}, DType::f8e4m3);
  f(quant::Float8Code<f8e5m2>{}, DType::f8e5m2);
}

/// Every value of a format and every midpoint, with both neighbours in f32; every upper half of a float, with a lower
/// half that changes the rounding; infinities and NaN of every kind among them.
template <class Code>
std::vector<float> values_of(const Code& code) {
  std::vector<float> values;
  const auto add = [&](float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    for (const std::uint32_t near : {bits - 1, bits, bits + 1}) values.push_back(std::bit_cast<float>(near));
  };
  for (int sign = 0; sign < 256; sign += 128) {
    for (int i = 0; i < 127; ++i) {
      const float low = code.decode(static_cast<std::uint8_t>(sign + i));
      const float high = code.decode(static_cast<std::uint8_t>(sign + i + 1));
      add(low);
      if (std::isfinite(low) && std::isfinite(high)) add((low + high) / 2);
    }
    add(sign == 0 ? Code::largest * 1.0625f : Code::largest * -1.0625f);
  }
  for (std::uint32_t upper = 0; upper < 65'536; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return values;
}

/// Flushes subnormal operands and results to zero while it lives.
struct FlushScope {
  unsigned before = _mm_getcsr();
  FlushScope() { _mm_setcsr(before | 0x8040u); }
  ~FlushScope() { _mm_setcsr(before); }
};

bool is_here() {
  if (kernels::is_supported(kernels::Isa::avx512)) return true;
  thimble_test::skip("AVX-512 is not on this machine");
  return false;
}

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("fp8 loops: codes of AVX-512 are those of the codec", "[fp8][formats]") {
  if (!is_here()) return;
  for_formats([]<class Code>(const Code& code, DType dtype) {
    const std::vector<float> values = values_of(code);
    const auto n = static_cast<std::int64_t>(values.size());
    for (const float inverse : {1.0f, 0.37f, 0x1p-40f, 3e30f, 0.0f, infinity, std::nanf("")}) {
      INFO(to_string(dtype) << " times " << inverse);
      std::vector<std::uint8_t> of_tensor(values.size()), of_numbers(values.size());
      const std::vector<float> inverses(values.size(), inverse);
      kernels::fp8_encode_avx512(dtype, values.data(), inverse, of_tensor.data(), n);
      kernels::fp8_encode_avx512(dtype, values.data(), inverses.data(), of_numbers.data(), n);
      std::size_t wrong = 0, wrong_numbers = 0, wrong_nan = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        wrong += of_tensor[i] != kernels::fp8_code<Code>(values[i], inverse);
        const float x = values[i] * inverse;
        if (std::isnan(x)) {  // the processor chooses its sign
          wrong_nan += !std::isnan(code.decode(of_numbers[i]));
        } else {
          wrong_numbers += of_numbers[i] != code.encode(x);
        }
      }
      CHECK(wrong == 0);
      CHECK(wrong_numbers == 0);
      CHECK(wrong_nan == 0);
      std::vector<std::uint8_t> again(values.size());
      {
        const FlushScope flushed;
        kernels::fp8_encode_avx512(dtype, values.data(), inverse, again.data(), n);
      }
      std::size_t differ = 0;  // a subnormal value is 0 to the product; all others keep their codes
      for (std::size_t i = 0; i < values.size(); ++i) {
        differ += std::fpclassify(values[i]) != FP_SUBNORMAL && inverse >= 0.37f && again[i] != of_tensor[i];
      }
      CHECK(differ == 0);
    }
  });
}

TEST_CASE("fp8 loops: values of AVX-512 are those of the codec", "[fp8][formats]") {
  if (!is_here()) return;
  for_formats([]<class Code>(const Code&, DType dtype) {
    std::vector<std::uint8_t> codes(256);
    for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
    std::vector<std::uint16_t> values(256);
    kernels::fp8_decode_avx512(dtype, codes.data(), values.data(), 256);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < 256; ++i) wrong += values[i] != kernels::fp8_value_bits<Code>(codes[i]);
    CHECK(wrong == 0);
    for (const float scale : {1.0f, 0x1p-60f, 0x1p100f, 0x1p-126f, 0.0f, infinity, std::nanf("")}) {
      INFO(to_string(dtype) << " times " << scale);
      kernels::fp8_decode_avx512(dtype, codes.data(), scale, values.data(), 256);
      std::size_t scaled_wrong = 0;
      for (std::size_t i = 0; i < 256; ++i) {
        const std::uint16_t expected = kernels::fp8_value_bits<Code>(codes[i], scale);
        const auto is_nan = [](std::uint16_t bits) { return (bits & 0x7FFFu) > 0x7F80u; };  // of either sign
        scaled_wrong += values[i] != expected && !(is_nan(values[i]) && is_nan(expected));
      }
      CHECK(scaled_wrong == 0);
    }
  });
}

TEST_CASE("fp8 loops: lengths that fill no vector", "[fp8][formats]") {
  if (!is_here()) return;
  for_formats([]<class Code>(const Code&, DType dtype) {
    for (std::int64_t n = 0; n <= 70; ++n) {
      INFO(to_string(dtype) << ", " << n);
      const auto length = static_cast<std::size_t>(n);
      std::vector<float> values(length), factor(length, 0.5f);  // only these are read: a sanitizer sees more
      for (std::size_t i = 0; i < length; ++i) values[i] = static_cast<float>(i) - 20.3f;
      std::vector<std::uint8_t> codes(length + 1, 0xAB), numbers(length + 1, 0xAB);
      kernels::fp8_encode_avx512(dtype, values.data(), 0.5f, codes.data(), n);
      kernels::fp8_encode_avx512(dtype, values.data(), factor.data(), numbers.data(), n);
      std::vector<std::uint16_t> plain(length + 1, 0xABCD), scaled(length + 1, 0xABCD);
      const std::vector<std::uint8_t> read(codes.begin(), codes.begin() + n);
      kernels::fp8_decode_avx512(dtype, read.data(), plain.data(), n);
      kernels::fp8_decode_avx512(dtype, read.data(), 0.5f, scaled.data(), n);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < length; ++i) {
        wrong += codes[i] != kernels::fp8_code<Code>(values[i], 0.5f) || numbers[i] != codes[i];
        wrong += plain[i] != kernels::fp8_value_bits<Code>(codes[i]);
        wrong += scaled[i] != kernels::fp8_value_bits<Code>(codes[i], 0.5f);
      }
      CHECK(wrong == 0);
      CHECK((codes.back() == 0xAB && numbers.back() == 0xAB && plain.back() == 0xABCD && scaled.back() == 0xABCD));
    }
  });
}

}  // namespace thimble

#endif
