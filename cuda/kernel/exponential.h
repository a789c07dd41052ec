#pragma once
// Powers, logarithms and reciprocals by the device's instructions, for results that need not equal the CPU's bit by
// bit.

#include <cmath>

#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

// float name(float x): by the device's instruction, on the host by its definition.
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
/// The same, subnormal numbers too.
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

/// The same for numbers that came in S. In 16 bits its relative error may be |x| 2^-23, far below its operand's.
template <class S, class T>
THIMBLE_DEVICE inline T exp_of(T x) {
  if constexpr (sizeof(S) == 2) {
    return power_of_two(x * 0x1.715476p0f);
  } else {
    return quick_exp(x);
  }
}

}  // namespace thimble::cuda_kernels
