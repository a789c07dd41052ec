// Elementary functions: error against double, special values, and equal bits in every instruction set.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/numbers/math.h>

#include "support/catch.h"
#include "support/near.h"
#include "support/skip.h"

namespace {

using namespace thimble;

const float infinite = std::numeric_limits<float>::infinity();
const float quiet = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();

using FloatFunction = float (*)(float);
using DoubleFunction = double (*)(double);
using Loop = void (*)(const float* x, float* y, std::int64_t n);

// The same loop for every instruction set. The scalar form makes one call per element, through a pointer that the
// compiler cannot see through.
template <FloatFunction function>
void loop_scalar(const float* x, float* y, std::int64_t n) {
  FloatFunction volatile opaque = function;
  const FloatFunction call = opaque;
  for (std::int64_t i = 0; i < n; ++i) y[i] = call(x[i]);
}
template <FloatFunction function>
void loop_baseline(const float* __restrict x, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = function(x[i]);
}
#if defined(__x86_64__)
template <FloatFunction function>
THIMBLE_TARGET_AVX2 void loop_avx2(const float* __restrict x, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = function(x[i]);
}
template <FloatFunction function>
THIMBLE_TARGET_AVX512 void loop_avx512(const float* __restrict x, float* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = function(x[i]);
}
#endif

struct Function {
  const char* name;
  FloatFunction f;
  DoubleFunction reference;
  double largest_ulp;
  Loop scalar, baseline, avx2, avx512;
};

template <FloatFunction f>
Function describe(const char* name, DoubleFunction reference, double largest_ulp) {
#if defined(__x86_64__)
  return {name, f, reference, largest_ulp, loop_scalar<f>, loop_baseline<f>, loop_avx2<f>, loop_avx512<f>};
#else
  return {name, f, reference, largest_ulp, loop_scalar<f>, loop_baseline<f>, nullptr, nullptr};
#endif
}

const std::vector<Function>& functions() {
  static const std::vector<Function> table = {
      describe<math::exp>("exp", static_cast<DoubleFunction>(std::exp), 1.0),
      describe<math::log>("log", static_cast<DoubleFunction>(std::log), 1.0),
      describe<math::tanh>("tanh", static_cast<DoubleFunction>(std::tanh), 2.0),
      describe<math::erf>("erf", static_cast<DoubleFunction>(std::erf), 2.0),
      describe<math::sigmoid>(
          "sigmoid", [](double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }, 3.0),
      describe<math::softplus_rest>(
          "softplus_rest", [](double x) { return std::log1p(std::exp(-std::fabs(x))); }, 3.0),
  };
  return table;
}

/// Error in units in the last place of the exact result; below the normal range the unit is 2^-149, and infinity for a
/// finite exact result counts as 2^128.
double ulp_error(float value, double exact) {
  if (std::isnan(exact)) return std::isnan(value) ? 0 : infinite;
  if (std::isinf(exact) || exact == 0) return value == exact ? 0 : infinite;
  if (std::isinf(value) && std::isinf(static_cast<float>(exact)))
    return std::signbit(value) == std::signbit(exact) ? 0 : infinite;
  const double finite = std::isinf(value) ? std::copysign(0x1p128, value) : static_cast<double>(value);
  const double error = std::fabs(finite - exact) / std::ldexp(1.0, std::max(-149, std::ilogb(exact) - 23));
  return std::isnan(error) ? infinite : error;
}

/// Every `step`-th float from zero up, with both signs, plus the borders of all exponents and the special values.
std::vector<float> samples(std::uint32_t step) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits < 0x7F800000u; bits += step) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    values.push_back(x);
    values.push_back(-x);
  }
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const std::uint32_t offset : {0xFFFFFFFFu, 0u, 1u}) {
      const float x = std::bit_cast<float>((exponent << 23) + offset);
      values.push_back(x);
      values.push_back(-x);
    }
  }
  for (const std::uint32_t payload : {0x7F800001u, 0x7FC12345u, 0xFF812345u, 0xFFFFFFFFu}) {
    values.push_back(std::bit_cast<float>(payload));
  }
  // Where results begin to overflow, to vanish or to be 1, and where two formulas meet.
  for (const float center : {88.72284f, -87.33655f, -103.97208f, 104.0f, 0.625f, 9.0109f, 0.921875f, 3.919f, 4.0f,
                             0.70710678f, 1.0f, 1.41421356f}) {
    float below = center, above = center;
    for (int i = 0; i < 300; ++i) {
      values.insert(values.end(), {below, above, -below, -above});
      below = std::nextafter(below, -infinite);
      above = std::nextafter(above, infinite);
    }
  }
  return values;
}

bool is_same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace

TEST_CASE("math: errors stay within the stated bounds", "[math]") {
  const std::vector<float> values = samples(2003);
  for (const Function& function : functions()) {
    double worst = 0;
    float at = 0;
    for (const float x : values) {
      const double error = ulp_error(function.f(x), function.reference(x));
      if (!(error <= worst)) worst = thimble_test::worse(worst, error), at = x;
    }
    INFO(function.name << ": " << worst << " ulp at " << at);
    CHECK(worst < function.largest_ulp);
    CHECK(worst > 0.5);  // no smaller error is possible: the measurement works
  }
}

TEST_CASE("math: special values", "[math]") {
  struct Row {
    FloatFunction f;
    float x, y;
  };
  const float subnormal = std::numeric_limits<float>::denorm_min();
  const Row rows[] = {
      {math::exp, 0.0f, 1.0f},
      {math::exp, -0.0f, 1.0f},
      {math::exp, infinite, infinite},
      {math::exp, -infinite, 0.0f},
      {math::exp, largest, infinite},
      {math::exp, 0x1.62e432p6f, infinite},
      {math::exp, -103.972076f, subnormal},
      {math::exp, -104.0f, 0.0f},
      {math::exp, quiet, quiet},
      {math::log, 1.0f, 0.0f},
      {math::log, 0.0f, -infinite},
      {math::log, -0.0f, -infinite},
      {math::log, -subnormal, quiet},
      {math::log, -infinite, quiet},
      {math::log, infinite, infinite},
      {math::log, subnormal, -103.27893f},
      {math::log, quiet, quiet},
      {math::tanh, 0.0f, 0.0f},
      {math::tanh, -0.0f, -0.0f},
      {math::tanh, subnormal, subnormal},
      {math::tanh, -infinite, -1.0f},
      {math::tanh, largest, 1.0f},
      {math::tanh, quiet, quiet},
      {math::erf, 0.0f, 0.0f},
      {math::erf, -0.0f, -0.0f},
      {math::erf, subnormal, subnormal},
      {math::erf, infinite, 1.0f},
      {math::erf, -largest, -1.0f},
      {math::erf, quiet, quiet},
      {math::sigmoid, 0.0f, 0.5f},
      {math::sigmoid, -0.0f, 0.5f},
      {math::sigmoid, infinite, 1.0f},
      {math::sigmoid, -infinite, 0.0f},
      {math::sigmoid, -103.972076f, subnormal},
      {math::sigmoid, quiet, quiet},
  };
  for (const Row& row : rows) {
    INFO("row " << &row - rows << ": f(" << row.x << ") = " << row.f(row.x) << ", expected " << row.y);
    CHECK(is_same(row.f(row.x), row.y));
  }
}

TEST_CASE("math: saturation starts where the documentation says", "[math]") {
  CHECK(math::tanh(9.012f) == 1.0f);
  CHECK(math::tanh(9.009f) < 1.0f);
  CHECK(math::erf(3.921f) == 1.0f);
  CHECK(math::erf(3.917f) < 1.0f);
  CHECK(math::exp(0x1.62e42ep6f) < infinite);
}

TEST_CASE("math: odd functions are odd to the bit", "[math]") {
  std::size_t wrong = 0;
  for (const float x : samples(50'021)) {
    if (std::isnan(x)) continue;
    wrong += !is_same(math::tanh(-x), -math::tanh(x));
    wrong += !is_same(math::erf(-x), -math::erf(x));
  }
  CHECK(wrong == 0);
}

TEST_CASE("math: the normal distribution, its tails too", "[math]") {
  double worst_cdf = 0, worst_bell = 0;  // in units of the bounds
  for (float x = 0.0009765625f; x < 13; x *= 1.0003f) {
    for (const float signed_x : {x, -x}) {
      const double exact_x = signed_x, square = exact_x * exact_x;
      const double cdf = 0.5 * std::erfc(-exact_x / std::sqrt(2.0)), bell = std::exp(-0.5 * square);
      const math::Normal<float> normal = math::normal(signed_x);
      worst_cdf =
          thimble_test::worse(worst_cdf, std::abs(static_cast<double>(normal.cdf) / cdf - 1) / (5e-7 + 3e-8 * square));
      worst_bell = thimble_test::worse(worst_bell,
                                       std::abs(static_cast<double>(normal.bell) / bell - 1) / (1e-7 + 4e-8 * square));
      const math::Normal<double> wide = math::normal(exact_x);
      CHECK(wide.cdf == Approx(cdf).epsilon(1e-12));
      CHECK(wide.bell == Approx(bell).epsilon(1e-12));
    }
  }
  CHECK(worst_cdf < 1);
  CHECK(worst_bell < 1);
  CHECK(math::normal(0.0f).cdf == 0.5f);
  CHECK(math::normal(0.0f).bell == 1.0f);
  CHECK(math::normal(infinite).cdf == 1.0f);
  CHECK(math::normal(-infinite).cdf == 0.0f);
  CHECK(math::normal(-20.0f).cdf < 0x1p-126f);
  CHECK(std::isnan(math::normal(quiet).cdf));
}

TEST_CASE("math: double forms are those of the standard library", "[math]") {
  for (const double x : {-3.0, -0.25, 0.5, 7.0}) {
    CHECK(math::exp(x) == std::exp(x));
    CHECK(math::tanh(x) == std::tanh(x));
    CHECK(math::erf(x) == std::erf(x));
    CHECK(math::softplus_rest(x) == std::log1p(std::exp(-std::fabs(x))));
    CHECK(math::sigmoid(x) == Approx(1 / (1 + std::exp(-x))).epsilon(1e-15));
  }
  CHECK(math::log(0.3) == std::log(0.3));
  CHECK(math::sigmoid(-745.0) > 0.0);
  CHECK(math::sigmoid(800.0) == 1.0);
}

TEST_CASE("math: a choice without a branch", "[math]") {
  const double infinity = std::numeric_limits<double>::infinity(), none = std::nan("");
  for (const double a :
       {0.0, -0.0, 1.0, -1.0, 1e-40, 1.9999, -1.9999, 2.0, -2.0, 3.0, infinity, -infinity, none, -none}) {
    const double expected = std::abs(a) < 2 ? -3 : 7;
    CHECK(math::select_if_near(a, 2.0, -3.0, 7.0) == expected);
    CHECK(math::select_if_near(static_cast<float>(a), 2.0f, -3.0f, 7.0f) == static_cast<float>(expected));
    CHECK(math::select_if_zero(a, -3.0, 7.0) == (a == 0 ? -3 : 7));
    CHECK(math::select_if_zero(static_cast<float>(a), -3.0f, 7.0f) == (a == 0 ? -3 : 7));
  }
}

TEST_CASE("math: every instruction set gives the same bits", "[math]") {
  const std::vector<float> values = samples(10'007);
  const std::int64_t n = static_cast<std::int64_t>(values.size());
  const std::size_t bytes = values.size() * sizeof(float);
  for (const Function& function : functions()) {
    std::vector<float> expected(values.size());
    function.scalar(values.data(), expected.data(), n);
    const std::pair<kernels::Isa, Loop> loops[] = {{kernels::Isa::generic, function.baseline},
                                                   {kernels::Isa::avx2, function.avx2},
                                                   {kernels::Isa::avx512, function.avx512}};
    for (const auto& [isa, loop] : loops) {
      if (!kernels::is_supported(isa)) {
        thimble_test::skip_part(std::string(to_string(isa)) + " is not on this machine");
        continue;
      }
      INFO(function.name << " " << to_string(isa));
      std::vector<float> result(values.size());
      loop(values.data(), result.data(), n);
      CHECK(std::memcmp(result.data(), expected.data(), bytes) == 0);
    }
  }
}
