#pragma once
// Storage of a parameter narrower than f32 (NarrowArgs, core/kernels/optimizer.h), as far as all devices share it.
// Every optimizer's kernel reads and stores parameters by one class: parameter_run.h on the CPU,
// cuda/optimizer/parameter.h.

#include <cstdint>

#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/convert.h>

namespace thimble::kernels {

/// The form that NarrowArgs select. `rounded` for f32 and f64 parameters, which need no rounding.
enum class NarrowForm : std::uint8_t { rounded, master, compensated, stochastic };

inline NarrowForm form_of(const NarrowArgs& how) noexcept {
  if (how.is_stochastic) return NarrowForm::stochastic;
  if (how.master != nullptr) return NarrowForm::master;
  return how.compensation != nullptr ? NarrowForm::compensated : NarrowForm::rounded;
}

/// `value` in bf16, up or down so that the mean over `random` (16 bits, uniform) is `value`: adding random carries from
/// the bits below bf16's last one. Infinity and NaN stay unchanged; beyond bf16's largest number it may give infinity,
/// as rounding to nearest does.
THIMBLE_HD inline bf16 round_stochastically(float value, std::uint32_t random) noexcept {
  const auto bits = bit_cast<std::uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return bf16(value);
  return bf16::from_bits(static_cast<std::uint16_t>((bits + random) >> 16));
}

/// The 16 random bits of element `place` of a block of eight: half place % 2 of word place / 2 % 4.
THIMBLE_HD inline std::uint32_t rounding_bits(const PhiloxBlock& words, int place) noexcept {
  const std::uint32_t low = place % 4 < 2 ? words.word[0] : words.word[1];  // no index: registers have none
  const std::uint32_t high = place % 4 < 2 ? words.word[2] : words.word[3];
  return (place < 4 ? low : high) >> (16 * (place % 2)) & 0xFFFFu;
}

/// The random numbers of elements 8 block .. 8 block + 7.
THIMBLE_HD inline PhiloxBlock rounding_block(const RandomSite& site, std::int64_t block) noexcept {
  return random_block(site, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32));
}

/// The 16 random bits of an element.
THIMBLE_HD inline std::uint32_t rounding_bits(const RandomSite& site, std::int64_t element) noexcept {
  return rounding_bits(rounding_block(site, element / 8), static_cast<int>(element % 8));
}

}  // namespace thimble::kernels
