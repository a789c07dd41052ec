// Weights in codes: NF4 against the nearest level by brute force, the second quantization of its magnitudes against
// loops, 8-bit blocks against quantize(), bytes, and equal bits on any number of threads and on a CUDA device.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/numbers/nf4.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>

#include "support/catch.h"
#include "support/operator_table.h"
#include "support/weight_codes.h"

using namespace thimble;

namespace weight_code_test {

// The quantiles that bitsandbytes prints (get_4bit_type("nf4")).
constexpr double levels[16] = {-1.0,
                               -0.6961928009986877,
                               -0.5250730514526367,
                               -0.39491748809814453,
                               -0.28444138169288635,
                               -0.18477343022823334,
                               -0.09105003625154495,
                               0.0,
                               0.07958029955625534,
                               0.16093020141124725,
                               0.24611230194568634,
                               0.33791524171829224,
                               0.44070982933044434,
                               0.5626170039176941,
                               0.7229568362236023,
                               1.0};

int nearest(double x) {
  int best = 0;
  for (int c = 1; c < 16; ++c) {
    if (std::abs(x - levels[c]) < std::abs(x - levels[best])) best = c;
  }
  return best;
}

Tensor normal(const Shape& shape, double deviation = 0.02, DType dtype = DType::f32) {
  RandomGenerator generator(7);
  const GeneratorScope scope(generator);
  const Tensor t = Tensor::empty(shape, dtype);
  fill_normal(t, 0, deviation);
  return t;
}

/// NF4 and back with both quantizations, in plain loops.
std::vector<float> by_hand(const std::vector<float>& w, std::vector<int>& codes) {
  const std::size_t blocks = (w.size() + 63) / 64;
  std::vector<float> amax(blocks, 0);
  for (std::size_t i = 0; i < w.size(); ++i) amax[i / 64] = std::max(amax[i / 64], std::abs(w[i]));
  codes.clear();
  for (std::size_t i = 0; i < w.size(); ++i) codes.push_back(nearest(static_cast<double>(w[i] * (1 / amax[i / 64]))));
  double sum = 0;
  for (const float a : amax) sum += static_cast<double>(a);
  const auto offset = static_cast<float>(sum / static_cast<double>(blocks));
  for (float& a : amax) a -= offset;
  const quant::DynamicTable& table = quant::dynamic_table(true);
  for (std::size_t first = 0; first < blocks; first += 256) {
    const std::size_t end = std::min(blocks, first + 256);
    float scale = 0;
    for (std::size_t b = first; b < end; ++b) scale = std::max(scale, std::abs(amax[b]));
    for (std::size_t b = first; b < end; ++b) {
      const float x = amax[b] * (1 / scale);
      int best = 0;
      for (int c = 1; c < 256; ++c) {
        if (std::abs(table.values[static_cast<std::size_t>(c)] - x) <
            std::abs(table.values[static_cast<std::size_t>(best)] - x)) {
          best = c;
        }
      }
      amax[b] = table.values[static_cast<std::size_t>(best)] * scale + offset;
    }
  }
  std::vector<float> back;
  for (std::size_t i = 0; i < w.size(); ++i) {
    back.push_back(static_cast<float>(levels[codes[i]]) * amax[i / 64]);
  }
  return back;
}

}  // namespace weight_code_test

TEST_CASE("weight codes: NF4 is the nearest level, the lower one in the middle", "[nf4]") {
  using namespace weight_code_test;
  for (int c = 0; c < 16; ++c) {
    CHECK(static_cast<double>(quant::nf4_level(c)) == static_cast<double>(static_cast<float>(levels[c])));
    CHECK(quant::nf4_encode(quant::nf4_level(c)) == c);
  }
  for (int i = -120000; i <= 120000; ++i) {
    const float x = static_cast<float>(i) * 1e-5F;
    if (quant::nf4_encode(x) != nearest(static_cast<double>(x))) FAIL_CHECK(x);
  }
  // The neighbours of every border, where f32 arithmetic could go wrong.
  for (int c = 0; c < 15; ++c) {
    float x = static_cast<float>((levels[c] + levels[c + 1]) / 2);
    for (int i = 0; i < 4; ++i) x = std::nextafter(x, -2.0F);
    for (int i = 0; i < 9; ++i, x = std::nextafter(x, 2.0F)) {
      INFO(c << " " << i);
      CHECK(quant::nf4_encode(x) == nearest(static_cast<double>(x)));
    }
  }
  CHECK(quant::nf4_encode(std::numeric_limits<float>::infinity()) == 15);
  CHECK(quant::nf4_encode(-std::numeric_limits<float>::infinity()) == 0);
}

TEST_CASE("weight codes: NF4 with both quantizations against loops", "[nf4]") {
  using namespace weight_code_test;
  for (const std::int64_t n : {1, 2, 63, 64, 65, 1000, 16384, 16385, 50001}) {
    INFO(n);
    const Tensor w = normal({n});
    const Tensor coded = encode_weight(w, WeightCode::nf4);
    const std::int64_t blocks = (n + 63) / 64, groups = (blocks + 255) / 256;
    CHECK(coded.elements() == 4 + 4 * groups + blocks + (n + 1) / 2);
    CHECK(coded_bytes(WeightCode::nf4, n) == static_cast<std::size_t>(coded.elements()));
    std::vector<int> codes;
    const std::vector<float> expected = by_hand(to_host<float>(w), codes);
    const std::vector<std::uint8_t> bytes = to_host<std::uint8_t>(coded);
    const auto first = static_cast<std::size_t>(4 + 4 * groups + blocks);
    for (std::size_t i = 0; i < codes.size(); ++i) {  // the high half has the first of two
      const int code = (bytes[first + i / 2] >> (i % 2 == 0 ? 4 : 0)) & 15;
      if (code != codes[i]) FAIL_CHECK(i);
    }
    if (n % 2 == 1) CHECK((bytes.back() & 15) == 0);  // equal weights give equal files
    CHECK(to_host<float>(decode_weight(coded, WeightCode::nf4, {n}, DType::f32)) == expected);
    const Tensor narrow = decode_weight(coded, WeightCode::nf4, {n}, DType::bf16);
    CHECK(to_host<float>(narrow) == to_host<float>(to_dtype(from_host(expected, {n}), DType::bf16)));
  }
  // 4.127 bits per number.
  CHECK(static_cast<double>(coded_bytes(WeightCode::nf4, 1 << 24)) * 8 / (1 << 24) == Approx(4.127).epsilon(1e-4));
}

TEST_CASE("weight codes: the bits of bitsandbytes 0.50.2", "[nf4]") {
  using namespace weight_code_test;
  // quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4") on a CPU.
  constexpr std::int64_t n = 300;
  const std::string codes =
      "0feeedccba98765433211100ffeeddcba987655432211100feeedccba98765433211100ffeeddcbba97655432211100f"
      "eeeddcba98765433221100ffeeedcbba98765432211100ffeeddcba98765433221100ffeeedccba98765432211100ffe"
      "eddcba98765443221100ffeeedccba98765433211100ffeeddcba98765443221110ffeeedccba98765433211100ffeed"
      "dcba98765543";
  const std::vector<int> magnitudes{1, 35, 95, 218, 255};
  constexpr float offset = 0x1.3074a8p-3F, scale = 0x1.9c0440p-4F;
  std::vector<float> w;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<double>(i * 7919 % 2001 - 1000);
    w.push_back(static_cast<float>(k / 1000.0 * 0.05 * static_cast<double>(1 + i / 64)));
  }
  const Tensor coded = encode_weight(from_host(w, {n}), WeightCode::nf4);
  const std::vector<std::uint8_t> bytes = to_host<std::uint8_t>(coded);
  float numbers[2];
  std::memcpy(numbers, bytes.data(), sizeof numbers);
  CHECK(numbers[0] == offset);
  CHECK(numbers[1] == scale);
  CHECK(std::vector<int>(bytes.begin() + 8, bytes.begin() + 13) == magnitudes);
  std::string text;
  for (std::size_t i = 13; i < bytes.size(); ++i) {
    constexpr char digits[] = "0123456789abcdef";
    text += {digits[bytes[i] >> 4], digits[bytes[i] & 15]};
  }
  CHECK(text == codes);
  const std::vector<float> back = to_host<float>(decode_weight(coded, WeightCode::nf4, {n}, DType::f32));
  const std::vector<std::pair<std::size_t, float>> some{{0, -0x1.9b2be80000000p-5F},  {1, 0x1.9b2be80000000p-5F},
                                                        {63, -0x1.44c1f40000000p-6F}, {64, -0x1.3df9020000000p-5F},
                                                        {150, 0x1.29686c0000000p-5F}, {299, -0x1.932eac0000000p-4F}};
  for (const auto& [at, value] : some) CHECK(back[at] == Approx(value).epsilon(2e-7));
}

TEST_CASE("weight codes: 8-bit blocks are those of quantize()", "[nf4]") {
  using namespace weight_code_test;
  for (const std::int64_t n : {1, 31, 32, 33, 4099}) {
    INFO(n);
    const Tensor w = normal({n});
    const Tensor coded = encode_weight(w, WeightCode::int8);
    CHECK(coded.elements() == n + 2 * ((n + 31) / 32));
    const Quantization how{DType::i8, ScaleBlocks::flat(32), DType::f16};
    CHECK(to_host<float>(decode_weight(coded, WeightCode::int8, {n}, DType::f32)) ==
          to_host<float>(dequantize(quantize(w, how), how)));
  }
}

TEST_CASE("weight codes: rounding, zeros, and what is not finite", "[nf4]") {
  using namespace weight_code_test;
  const Tensor w = normal({64, 96}, 1);
  const auto error = [&](WeightCode code, const Tensor& t) {
    const std::vector<float> there = to_host<float>(decode_weight(encode_weight(t, code), code, t.shape(), DType::f32));
    const std::vector<float> here = to_host<float>(t);
    double square = 0, all = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      square += std::pow(static_cast<double>(there[i] - here[i]), 2), all += std::pow(static_cast<double>(here[i]), 2);
    }
    return std::sqrt(square / all);
  };
  CHECK(error(WeightCode::nf4, w) < 0.1);  // about 0.09 for a normal distribution
  CHECK(error(WeightCode::nf4, w) > 0.05);
  CHECK(error(WeightCode::int8, w) < 0.01);
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    INFO(to_string(code));
    CHECK(to_host<float>(decode_weight(encode_weight(zeros({200}), code), code, {200}, DType::f32)) ==
          std::vector<float>(200, 0));
    std::vector<float> values = to_host<float>(w);
    values[70] = std::numeric_limits<float>::quiet_NaN();
    const Tensor bad = from_host(values, w.shape());
    const std::vector<float> back =
        to_host<float>(decode_weight(encode_weight(bad, code), code, w.shape(), DType::f32));
    for (std::size_t i = 64; i < 96; ++i) CHECK(std::isnan(back[i]));
    CHECK(std::isnan(back[0]) == (code == WeightCode::nf4));
    // bf16 weights have the codes of their values in f32.
    const Tensor narrow = to_dtype(w, DType::bf16);
    CHECK(to_host<std::uint8_t>(encode_weight(narrow, code)) ==
          to_host<std::uint8_t>(encode_weight(to_dtype(narrow, DType::f32), code)));
    CHECK_THROWS_AS(encode_weight(zeros({4}, DType::i32), code), DTypeError);
    CHECK_THROWS_AS(decode_weight(encode_weight(w, code), code, {7}, DType::f32), ShapeError);
  }
}

TEST_CASE("weight codes: the same bits whatever computes them", "[nf4][cuda]") {
  using namespace weight_code_test;
  const Tensor w = normal({301, 67});
  for (const WeightCode code : {WeightCode::int8, WeightCode::nf4}) {
    INFO(to_string(code));
    const int before = thread_count();
    set_thread_count(1);
    const std::vector<std::uint8_t> alone = to_host<std::uint8_t>(encode_weight(w, code));
    const std::vector<float> back = to_host<float>(decode_weight(encode_weight(w, code), code, w.shape(), DType::f32));
    set_thread_count(5);
    CHECK(to_host<std::uint8_t>(encode_weight(w, code)) == alone);
    CHECK(to_host<float>(decode_weight(encode_weight(w, code), code, w.shape(), DType::f32)) == back);
    set_thread_count(before);
    if (!testing::has_cuda()) continue;
    const Tensor there = to_device(w, cuda());
    CHECK(to_host<std::uint8_t>(to_device(encode_weight(there, code), cpu)) == alone);
    CHECK(to_host<float>(to_device(decode_weight(encode_weight(there, code), code, w.shape(), DType::f32), cpu)) ==
          back);
  }
}
