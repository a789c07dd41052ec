#pragma once
// Numbers with the device's approximate functions, the compute type of 16-bit elements: computing the CPU's functions
// bit for bit would take longer than a kernel's memory accesses.

#include <cmath>
#include <type_traits>

#include <thimble/core/dtype.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

// ---- Powers, logarithms and reciprocals by the device's instructions, for results that need not equal the CPU's bit
// by bit.

// Defines float name(float x) by the device's instruction, on the host by `definition`.
#if defined(__CUDA_ARCH__)
#define THIMBLE_BY_INSTRUCTION(name, instruction, definition) \
  THIMBLE_HD inline float name(float x) {                     \
    float y;                                                  \
    asm(instruction " %0, %1;" : "=f"(y) : "f"(x));           \
    return y;                                                 \
  }
#else
#define THIMBLE_BY_INSTRUCTION(name, instruction, definition) \
  THIMBLE_HD inline float name(float x) { return definition; }
#endif

/// 2^x within 2 units in the last place; 0 where it would be subnormal.
THIMBLE_BY_INSTRUCTION(power_of_two, "ex2.approx.ftz.f32", std::exp2(x))
/// 2^x within 2 units in the last place, subnormal results included.
THIMBLE_BY_INSTRUCTION(power_of_two_in_full, "ex2.approx.f32", std::exp2(x))
/// The logarithm of base 2 within 2^-22 between 1/2 and 2, and of its magnitude elsewhere.
THIMBLE_BY_INSTRUCTION(logarithm_of_two, "lg2.approx.f32", std::log2(x))
/// 1 / x within a unit in the last place; 0 where it would be subnormal.
THIMBLE_BY_INSTRUCTION(reciprocal, "rcp.approx.ftz.f32", 1.0f / x)

#undef THIMBLE_BY_INSTRUCTION

/// e^x for x up to 88 within 3 units in the last place; 0 below -87.3, NaN for NaN.
THIMBLE_DEVICE inline float quick_exp(float x) {
  // e^x = 2^t e^r with r = x - t ln 2, ln 2 in two parts: t's rounding error, far below 1.
  const float t = x * 0x1.715476p0f;
  const float r = __builtin_fmaf(t, 0x1.05c610p-29f, __builtin_fmaf(t, -0x1.62e430p-1f, x));
  const float power = power_of_two(t);
  const float result = __builtin_fmaf(power, r, power);
  return x < -87.3f ? 0.0f : result;
}
THIMBLE_DEVICE inline double quick_exp(double x) { return math::exp(x); }

/// e^x for numbers loaded as S. For 16-bit S the relative error may be |x| 2^-23, far below the operand's.
template <class S, class T>
THIMBLE_DEVICE inline T exp_of(T x) {
  if constexpr (sizeof(S) == 2) {
    return power_of_two(x * 0x1.715476p0f);
  } else {
    return quick_exp(x);
  }
}

/// A float. Its functions have a relative error below 2^-14: in 16 bits a result is the exact one rounded, or, near the
/// middle of two, its neighbour. Sums, differences and products are float's.
class Quick {
 public:
  Quick() = default;
  THIMBLE_HD constexpr explicit Quick(float value) : value_(value) {}
  THIMBLE_HD constexpr explicit Quick(double value) : value_(static_cast<float>(value)) {}
  THIMBLE_HD constexpr explicit Quick(int value) : value_(static_cast<float>(value)) {}
  THIMBLE_HD constexpr explicit operator float() const { return value_; }

  THIMBLE_HD friend Quick operator+(Quick a, Quick b) { return Quick(a.value_ + b.value_); }
  THIMBLE_HD friend Quick operator-(Quick a, Quick b) { return Quick(a.value_ - b.value_); }
  THIMBLE_HD friend Quick operator*(Quick a, Quick b) { return Quick(a.value_ * b.value_); }
  /// Within 2 units in the last place.
  THIMBLE_HD friend Quick operator/(Quick a, Quick b) {
#if defined(__CUDA_ARCH__)
    float quotient;
    asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a.value_), "f"(b.value_));
    return Quick(quotient);
#else
    return Quick(a.value_ / b.value_);
#endif
  }
  THIMBLE_HD friend Quick operator-(Quick a) { return Quick(-a.value_); }
  THIMBLE_HD friend bool operator<(Quick a, Quick b) { return a.value_ < b.value_; }
  THIMBLE_HD friend bool operator>(Quick a, Quick b) { return a.value_ > b.value_; }
  THIMBLE_HD friend bool operator==(Quick a, Quick b) { return a.value_ == b.value_; }

  THIMBLE_HD Quick exp() const { return Quick(power_of_two_in_full(value_ * log2_e)); }

  THIMBLE_HD Quick log() const {
    // Near 1 by its series, log(1 + f) = f - f^2 / 2 + f^3 / 3 - f^4 / 4: the instruction's error is absolute there.
    const float f = value_ - 1;
    const float near = f + f * f * fma(f, fma(f, -0.25f, 1.0f / 3), -0.5f);
    return Quick(std::fabs(f) < 0x1p-4f ? near : logarithm_of_two(value_) * 0x1.62e430p-1f);
  }

  THIMBLE_HD Quick sigmoid() const { return Quick(reciprocal(1 + power_of_two(value_ * -log2_e))); }

  THIMBLE_HD Quick softplus_rest() const {
    // log(1 + e) by its series near 1, as log() has it, but of e, which the sum would round.
    const float e = power_of_two_in_full(std::fabs(value_) * -log2_e);
    const float near = e + e * e * fma(e, fma(e, -0.25f, 1.0f / 3), -0.5f);
    return Quick(e < 0x1p-4f ? near : logarithm_of_two(1 + e) * 0x1.62e430p-1f);
  }

  THIMBLE_HD Quick tanh() const {
    // x - x^3 / 3 + 2 x^5 / 15, and 1 - 2 / (e^2x + 1), whose error is absolute.
    const float square = value_ * value_, x = value_;
    const float near = fma(x * square, fma(square, 2.0f / 15, -1.0f / 3), x);
    const float far = fma(reciprocal(1 + power_of_two(x * (2 * log2_e))), -2, 1);
    return Quick(std::fabs(x) < 0.25f ? near : far);
  }

  THIMBLE_HD Quick erf() const {
    // a + a q(a^2) below 1/2, 2^-16.4; 1 - 2^p(a) from there on, 2^-15.1 of the result.
    const float a = std::fabs(value_), square = a * a;
    const float q = fma(fma(square, 0x1.a6f93ep-4f, -0x1.803e90p-2f), square, 0x1.06e526p-3f);
    const float p = fma(fma(fma(a, -0x1.fe1832p-5f, -0x1.063b12p+0f), a, -0x1.9215b4p+0f), a, -0x1.7099d4p-7f);
    return Quick(std::copysign(a < 0.5f ? fma(a, q, a) : 1 - power_of_two(p), value_));
  }

  THIMBLE_HD math::Normal<Quick> normal() const {
    // cdf(-a) = bell t q(t), t = 1 / (1 + 0.376 a), 2^-15.1 of the result.
    const float a = std::fabs(value_), t = reciprocal(fma(a, 0.376f, 1));
    const float bell = power_of_two(a * a * (-0.5f * log2_e));
    float q = fma(t, -0x1.7538c4p-4f, 0x1.983582p-3f);
    q = fma(q, t, 0x1.5929e8p-4f);
    q = fma(q, t, 0x1.43b11ep-3f);
    q = fma(q, t, 0x1.321994p-3f);
    const float tail = bell * (t * q);
    return {Quick(value_ < 0 ? tail : 1 - tail), Quick(bell)};
  }

 private:
  static constexpr float log2_e = 0x1.715476p0f;
  THIMBLE_HD static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

  float value_;
};

/// The compute type of functions with results of type S.
template <class S>
using QuickNumber = std::conditional_t<sizeof(S) == 2, Quick, float>;
/// Whether QuickNumber of the dtype is Quick.
THIMBLE_HD constexpr bool is_quick(DType dtype) noexcept { return dtype == DType::f16 || dtype == DType::bf16; }

}  // namespace thimble::cuda_kernels
