#pragma once
// NF4, numbers in 4 bits (Dettmers et al. 2023, arXiv:2305.14314, section 3 and appendix E): 16 levels from -1 to 1,
// quantiles of a normal distribution with 0 among them, as in bitsandbytes. The caller first divides by the block's
// largest magnitude.

#include <cstdint>

#include <thimble/core/numbers/bits.h>

namespace thimble::quant {

inline constexpr int nf4_levels = 16;

/// The value of a code, 0 <= code < 16, in ascending order; code 7 is 0.
THIMBLE_HD constexpr float nf4_level(int code) noexcept {
  constexpr float levels[nf4_levels] = {-1.0F,
                                        -0.6961928009986877F,
                                        -0.5250730514526367F,
                                        -0.39491748809814453F,
                                        -0.28444138169288635F,
                                        -0.18477343022823334F,
                                        -0.09105003625154495F,
                                        0.0F,
                                        0.07958029955625534F,
                                        0.16093020141124725F,
                                        0.24611230194568634F,
                                        0.33791524171829224F,
                                        0.44070982933044434F,
                                        0.5626170039176941F,
                                        0.7229568362236023F,
                                        1.0F};
  return levels[code];
}

/// The largest float that is not farther from level `code` than from the next one, 0 <= code < 15.
THIMBLE_HD constexpr float nf4_border(int code) noexcept {
  const double middle = (static_cast<double>(nf4_level(code)) + static_cast<double>(nf4_level(code + 1))) / 2;
  const auto nearest = static_cast<float>(middle);
  if (static_cast<double>(nearest) <= middle) return nearest;
  const std::uint32_t bits = bit_cast<std::uint32_t>(nearest);
  return bit_cast<float>(nearest > 0 ? bits - 1 : bits + 1);
}

/// The nearest level, ties to the lower one. NaN becomes code 0. Branch-free.
THIMBLE_HD constexpr std::uint8_t nf4_encode(float x) noexcept {
  constexpr float borders[nf4_levels - 1] = {nf4_border(0),  nf4_border(1),  nf4_border(2),  nf4_border(3),
                                             nf4_border(4),  nf4_border(5),  nf4_border(6),  nf4_border(7),
                                             nf4_border(8),  nf4_border(9),  nf4_border(10), nf4_border(11),
                                             nf4_border(12), nf4_border(13), nf4_border(14)};
  int code = 0;
  for (const float border : borders) code += x > border ? 1 : 0;
  return static_cast<std::uint8_t>(code);
}

}  // namespace thimble::quant
