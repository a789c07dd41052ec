// Answers to the exercises of chapter 12, docs/book/12-eight-bits.md.

#include <cmath>

#include <thimble/core/numbers/minifloat.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/quant/quantize.h>

#include "support/catch.h"

using namespace thimble;

namespace {

template <class F>
int finite_numbers() {
  int count = 0;
  for (int code = 0; code < 256; ++code) {
    count += std::isfinite(F::Format::decode(static_cast<std::uint8_t>(code))) ? 1 : 0;
  }
  return count;
}

/// As in examples/fp8_by_hand.cpp.
std::uint8_t encode_by_hand(float x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::min(std::abs(x), 448.0f);
  const int e = magnitude < std::ldexp(1.0f, -6) ? -6 : std::ilogb(magnitude);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - e)));
  return static_cast<std::uint8_t>(sign | ((e + 6) * 8 + steps));
}

}  // namespace

TEST_CASE("exercise 12.1: finite numbers", "[exercise]") {
  CHECK(finite_numbers<f8e4m3>() == 254);  // all but two NaNs; 0 and -0 count as two codes
  CHECK(finite_numbers<f8e5m2>() == 248);  // all but two infinities and six NaNs
}

TEST_CASE("exercise 12.2: by hand and by the library", "[exercise]") {
  for (int i = 0; i < 1000; ++i) {
    const auto x = static_cast<float>(std::sin(i));
    CHECK(encode_by_hand(x) == f8e4m3::Format::encode(x, Fp8Overflow::saturate));
  }
}

TEST_CASE("exercise 12.3: an outlier", "[exercise]") {
  std::vector<float> values;
  for (int i = 0; i < 1024; ++i) values.push_back(static_cast<float>(std::sin(i)));
  values[500] = 1000;
  const Tensor x = from_host(values, {1024});
  const auto mean_error = [&](ScaleBlocks blocks) {
    const Quantization how{.dtype = DType::i8, .blocks = blocks};
    const std::vector<float> back = to_host<float>(dequantize(quantize(x, how), how));
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += std::abs(static_cast<double>(back[i] - values[i]));
    return sum / 1024;
  };
  const double one = mean_error(ScaleBlocks::per_tensor()), many = mean_error(ScaleBlocks::flat(64));
  // One scale of 1000 / 127 turns nearly every value into zero; with many scales only 64 values share it.
  CHECK(one > 0.5);
  CHECK(many < one / 10);
}
