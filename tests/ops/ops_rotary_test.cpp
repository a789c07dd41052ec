// Rows of the operator table: rotary positions against their definition with complex numbers; then relative positions,
// scaled frequencies, and bad input.

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/operator_table.h"

using namespace thimble;
using namespace thimble::testing;

namespace {

using Values = std::vector<double>;

// Llama 3.1's formula, by wavelengths (transformers, `_compute_llama3_parameters`).
double scaled(double frequency, const RotaryScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency, length = static_cast<double>(s.original_length);
  if (wavelength < length / s.high) return frequency;
  if (wavelength > length / s.low) return frequency / s.factor;
  const double smooth = (length / wavelength - s.low) / (s.high - s.low);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// Frequency i of a head of `width` numbers over `positions`, as in transformers (`_compute_..._parameters`), and the
// factor of sines and cosines.
double frequency_of(std::int64_t i, std::int64_t width, std::int64_t positions, const RotaryOptions& o) {
  const double d = static_cast<double>(width), exponent = 2 * static_cast<double>(i) / d;
  if (!o.scaling) return 1 / std::pow(o.theta, exponent);
  const RotaryScaling& s = *o.scaling;
  const double length = static_cast<double>(s.original_length);
  if (s.kind == RotaryKind::linear) return 1 / std::pow(o.theta, exponent) / s.factor;
  if (s.kind == RotaryKind::llama3) return scaled(1 / std::pow(o.theta, exponent), s);
  if (s.kind == RotaryKind::dynamic) {
    const double seq = std::max(static_cast<double>(positions), length);
    if (width == 2) return 1;
    return 1 / std::pow(o.theta * std::pow((s.factor * seq / length) - (s.factor - 1), d / (d - 2)), exponent);
  }
  const auto correction = [&](double turns) {
    return d * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(o.theta));
  };
  double low = correction(s.high), high = correction(s.low);
  if (s.rounds_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, d - 1);
  const double ramp =
      std::clamp((static_cast<double>(i) - low) / ((low == high ? high + 0.001 : high) - low), 0.0, 1.0);
  const double extrapolated = 1 / std::pow(o.theta, exponent),
               interpolated = 1 / (s.factor * std::pow(o.theta, exponent));
  return interpolated * ramp + extrapolated * (1 - ramp);
}

// Pair i as the complex number x_i + j x_(i + D/2), times e^(j angle).
Values reference(const HostArray& x, const RotaryOptions& o) {
  const std::int64_t length = x.shape[1], heads = x.shape[2], width = x.shape[3], pairs = width / 2;
  Values y(x.values.size());
  for (std::int64_t row = 0; row < x.shape[0] * length * heads; ++row) {
    const double position = static_cast<double>(o.first_position + row / heads % length);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double frequency = frequency_of(i, width, o.first_position + length, o);
      const std::complex<double> turned =
          std::complex<double>(x[row * width + i], x[row * width + pairs + i]) *
          std::polar(o.scaling ? o.scaling->attention_factor : 1.0, position * frequency);
      y[static_cast<std::size_t>(row * width + i)] = turned.real();
      y[static_cast<std::size_t>(row * width + pairs + i)] = turned.imag();
    }
  }
  return y;
}

}  // namespace

TEST_CASE("ops: rotary positions", "[ops][quick]") {
  const RotaryOptions cases[] = {
      {},
      {.theta = 500000, .first_position = 1000},
      {.theta = 100, .scaling = RotaryScaling{8, 1, 4, 32}},
      {.theta = 100, .scaling = RotaryScaling{3, 1, 4, 32, RotaryKind::linear}},
      {.theta = 100, .scaling = RotaryScaling{3, 1, 4, 2, RotaryKind::dynamic}},
      {.theta = 100, .first_position = 40, .scaling = RotaryScaling{3, 1, 4, 32, RotaryKind::dynamic}},
      {.theta = 50, .scaling = RotaryScaling{3, 1, 4, 64, RotaryKind::yarn, 1.3, false}},
      {.theta = 50, .first_position = 2, .scaling = RotaryScaling{7, 1, 32, 512, RotaryKind::yarn, 1.1}}};
  for (const RotaryOptions& o : cases) {
    for (const Shape& shape : {Shape{2, 5, 3, 8}, Shape{1, 3, 2, 2}, Shape{1, 2, 1, 512}}) {
      check_operator({"rotary " + to_string(shape),
                      {{shape}},
                      [=](auto in) { return rotary(in[0], o); },
                      [=](const std::vector<HostArray>& in) { return reference(in[0], o); },
                      [](std::int64_t, std::int64_t) { return 0; }});
    }
  }
}

TEST_CASE("ops: a product of rotated rows depends on their distance alone", "[ops][quick]") {
  const Tensor q = randn({1, 1, 1, 64}, DType::f64), k = randn({1, 1, 1, 64}, DType::f64);
  const auto score = [&](std::int64_t query, std::int64_t key) {
    return item(sum(mul(rotary(q, {.first_position = query}), rotary(k, {.first_position = key}))));
  };
  const double near = score(7, 3);
  for (const std::int64_t shift : {1, 100, 100000}) CHECK(score(7 + shift, 3 + shift) == Approx(near).epsilon(1e-9));
  CHECK(std::abs(score(8, 3) - near) > 1e-3);
  // A window in the middle equals the middle of the whole.
  const Tensor x = randn({2, 9, 2, 6});
  CHECK(to_host<float>(slice(rotary(x), 1, 4, 7)) == to_host<float>(rotary(slice(x, 1, 4, 7), {.first_position = 4})));
}

TEST_CASE("ops: Llama 3.1's scaling leaves high frequencies, divides low ones, and is steady between", "[ops][quick]") {
  // Frequencies of llama-3.2-1b: the angle of position 1 is the frequency, read off the pair (1, 0).
  Tensor x = zeros({1, 1, 1, 64}, DType::f64);
  fill(slice(x, 3, 0, 32), 1);
  const RotaryOptions plain{.theta = 500000, .first_position = 1};
  RotaryOptions stretched = plain;
  stretched.scaling = RotaryScaling{32, 1, 4, 8192};
  const auto angles = [&](const RotaryOptions& o) {
    const Values y = to_host<double>(rotary(x, o));
    Values list;
    for (std::size_t i = 0; i < 32; ++i) list.push_back(std::atan2(y[32 + i], y[i]));
    return list;
  };
  const Values before = angles(plain), after = angles(stretched);
  int kept = 0, divided = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(after[i] == Approx(scaled(before[i], *stretched.scaling)).epsilon(1e-9));
    CHECK(before[i] == Approx(std::pow(500000.0, -2.0 * static_cast<double>(i) / 64)).epsilon(1e-9));
    kept += after[i] == Approx(before[i]).epsilon(1e-9) ? 1 : 0;
    divided += after[i] == Approx(before[i] / 32).epsilon(1e-9) ? 1 : 0;
    if (i > 0) CHECK(after[i] < after[i - 1]);
  }
  // Wavelengths up to 2,048 stay, wavelengths above 8,192 are divided.
  CHECK(kept == 15);
  CHECK(divided == 14);
}

TEST_CASE("ops: rotary positions refuse what they cannot turn", "[ops][quick]") {
  const Tensor x = randn({1, 2, 1, 4});
  for (const Shape& shape : {Shape{2, 1, 4}, Shape{1, 2, 1, 3}, Shape{1, 2, 1, 0}, Shape{1, 1, 1, 514}}) {
    CHECK_THROWS_AS(rotary(zeros(shape)), ShapeError);
  }
  CHECK_THROWS_AS(rotary(zeros({1, 2, 1, 4}, DType::i64)), DTypeError);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double theta : {0.0, -1.0, nan}) CHECK_THROWS_AS(rotary(x, {.theta = theta}), ValueError);
  CHECK_THROWS_WITH(rotary(x, {.first_position = -1}), "rotary: positions from -1 for 2 tokens; expected 0 to 2^31");
  CHECK_NOTHROW(rotary(x, {.first_position = (std::int64_t{1} << 31) - x.size(1)}));
  CHECK_THROWS_AS(rotary(x, {.first_position = (std::int64_t{1} << 31) - x.size(1) + 1}), ValueError);
  CHECK_THROWS_AS(rotary(x, {.first_position = std::int64_t{1} << 31}), ValueError);
  const std::pair<RotaryScaling, std::string> bad[] = {{{0, 1, 4, 8}, "factor 0.000000"},
                                                       {{8, 4, 4, 8}, "high - low 0.000000"},
                                                       {{8, 1, 4, 0}, "original length 0.000000"},
                                                       {{8, nan, 4, 8}, "low nan"},
                                                       {{8, 0, 4, 8}, "low 0.000000"},
                                                       {{0, 1, 4, 8, RotaryKind::linear}, "factor 0.000000"},
                                                       {{8, 1, 4, 0, RotaryKind::dynamic}, "original length 0.000000"},
                                                       {{8, 1, 4, 8, RotaryKind::yarn, 0}, "attention factor 0.000000"},
                                                       {{8, 4, 4, 8, RotaryKind::yarn}, "high - low 0.000000"}};
  for (const auto& [scaling, what] : bad) {
    CHECK_THROWS_WITH(rotary(x, {.scaling = scaling}), "rotary: " + what + "; expected a finite number above 0");
  }
  CHECK(rotary(Tensor::empty({0, 2, 1, 4})).shape() == Shape{0, 2, 1, 4});
  CHECK(rotary(Tensor::empty({2, 0, 1, 4})).shape() == Shape{2, 0, 1, 4});
}
