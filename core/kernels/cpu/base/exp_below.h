#pragma once
// Softmax's exponential: takes only differences to the largest score, and is cheaper than math::exp.

#include <cstdint>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/numbers/math.h>

namespace thimble::kernels {
namespace exp_detail {

/// a b + c: in one rounding on the instruction sets that have a fused multiply-add, in two on the generic one.
template <bool is_fused>
inline float multiply_add(float a, float b, float c) noexcept {
  if constexpr (is_fused) {
    return __builtin_fmaf(a, b, c);
  } else {
    return a * b + c;
  }
}

}  // namespace exp_detail

/// e^x for x <= 0, -infinity included; NaN gives NaN. Error < 1 ulp from -86.98 on (tested for every 31st float;
/// largest found: 0.87 fused, 0.96 not), zero from -87 on: no result is subnormal, and beside a largest probability of
/// 1 or the sum of a row such a term vanishes. Arguments that rounding puts above 0 are as accurate. Branch-free like
/// math::exp, and with its polynomial.
template <bool is_fused>
inline float exp_below(float x) noexcept {
  using exp_detail::multiply_add;
  using math::detail::bits_of, math::detail::from_bits;
  constexpr float shifter = 0x1.8p23f;
  const float shifted = multiply_add<is_fused>(x, 0x1.715476p0f, shifter);
  const float n = shifted - shifter;  // the integer nearest to x / ln 2
  float r = multiply_add<is_fused>(n, -math::detail::ln2_high, x);
  r = multiply_add<is_fused>(n, -math::detail::ln2_low, r);
  // 2 e^r, so that 2^(n - 1) below is a normal number even for the smallest result.
  float q = 0x1.6a2432p-9f;
  q = multiply_add<is_fused>(q, r, 0x1.1239e2p-6f);
  q = multiply_add<is_fused>(q, r, 0x1.5558f2p-4f);
  q = multiply_add<is_fused>(q, r, 0x1.555492p-2f);
  q = multiply_add<is_fused>(q, r, 0x1.fffffcp-1f);
  float e;
  if constexpr (is_fused) {
    e = multiply_add<is_fused>(multiply_add<is_fused>(q, r, 2.0f), r, 2.0f);
  } else {
    e = (r * r * q + 2 * r) + 2.0f;  // saves a rounding at the size of the result
  }
  // 2^(n - 1), or any bits where x is so small that the result is zero; NaN passes.
  const std::uint32_t exponent = bits_of(shifted) - bits_of(shifter) + 126;
  return kept(!(shifted < shifter - 125.0f), e * from_bits(exponent << 23));
}
template <bool is_fused>
inline double exp_below(double x) noexcept {
  return math::exp(x);
}

}  // namespace thimble::kernels
