#pragma once
// Powers by the device's instruction, for results that are not the CPU's bit by bit.

#include <cmath>

#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/kernel.h>

namespace thimble::cuda_kernels {

/// 2^x within 2 units in the last place; 0 where it would be subnormal.
THIMBLE_HD inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// e^x for x up to 88 within 3 units in the last place; 0 below -87.3, NaN for NaN.
THIMBLE_DEVICE inline float quick_exp(float x) {
  // e^x = 2^t e^r with r = x - t ln 2, ln 2 in two parts: what t's rounding leaves, far below 1.
  const float t = x * 0x1.715476p0f;
  const float r = __builtin_fmaf(t, 0x1.05c610p-29f, __builtin_fmaf(t, -0x1.62e430p-1f, x));
  const float power = power_of_two(t);
  const float result = __builtin_fmaf(power, r, power);
  return x < -87.3f ? 0.0f : result;
}
THIMBLE_DEVICE inline double quick_exp(double x) { return math::exp(x); }

/// The same for numbers that came in S. In 16 bits its relative error may be |x| 2^-23, far below that of its operand.
template <class S, class T>
THIMBLE_DEVICE inline T exp_of(T x) {
  if constexpr (sizeof(S) == 2) {
    return power_of_two(x * 0x1.715476p0f);
  } else {
    return quick_exp(x);
  }
}

}  // namespace thimble::cuda_kernels
