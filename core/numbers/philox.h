#pragma once
// Counter-based random numbers: a pure function of (counter, key), so that any element of a random tensor can be
// recomputed in any order, on any thread, without stored state.

#include <cmath>
#include <cstdint>

#include <thimble/core/config.h>
#include <thimble/core/numbers/bits.h>
#include <thimble/core/numbers/math.h>

namespace thimble {

/// Names one block of four random words: 128 bits, e.g. element, sample, step and call.
struct PhiloxCounter {
  std::uint32_t word[4];
};

/// Names a stream, e.g. the seed: 64 bits.
struct PhiloxKey {
  std::uint32_t word[2];
};

/// Four words, uniform over all 2^128 values.
struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Philox4x32-10: ten rounds of a keyed bijection on 128 bits (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As
/// Easy as 1, 2, 3", SC 2011, section 3.3). Different counters under one key give different blocks.
THIMBLE_HD constexpr PhiloxBlock philox4x32(PhiloxCounter counter, PhiloxKey key) noexcept {
  std::uint32_t left0 = counter.word[0], right0 = counter.word[1];
  std::uint32_t left1 = counter.word[2], right1 = counter.word[3];
  std::uint32_t key0 = key.word[0], key1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * left0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * left1;
    left0 = static_cast<std::uint32_t>(product1 >> 32) ^ right0 ^ key0;
    left1 = static_cast<std::uint32_t>(product0 >> 32) ^ right1 ^ key1;
    right0 = static_cast<std::uint32_t>(product1);
    right1 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9u;  // the golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {{left0, right0, left1, right1}};
}

/// A multiple of 2^-24 in [0, 1) from the upper 24 bits of a word, all equally likely.
THIMBLE_HD constexpr float uniform_float(std::uint32_t word) noexcept {
  return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}

/// A multiple of 2^-53 in [0, 1) from 53 bits of two words.
THIMBLE_HD constexpr double uniform_double(std::uint32_t low, std::uint32_t high) noexcept {
  const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-53;
}

struct NormalPair {
  float first, second;
};

/// Two independent standard normal numbers from two words (Box and Muller 1958): radius sqrt(-2 ln u) with
/// u = (radius_word + 1/2) 2^-32 rounded to float, so at most 6.77, and angle 2 pi (angle_word 2^-32). Uses only
/// thimble::math, float arithmetic and the exactly rounded sqrt, so the bits are the same in every instruction set
/// under -ffp-contract=off.
THIMBLE_HD inline NormalPair normal_pair(std::uint32_t radius_word, std::uint32_t angle_word) noexcept {
  const float u = (static_cast<float>(radius_word) + 0.5f) * 0x1p-32f;
  const float radius = std::sqrt(-2.0f * math::log(u));
  // angle = (quarter + t / 2) pi / 2 with the nearest quarter turn and -1 <= t < 1.
  const std::uint32_t quarter = (angle_word + 0x20000000u) >> 30;
  const float t = static_cast<float>(static_cast<std::int32_t>(angle_word - (quarter << 30))) * 0x1p-29f;
  const float z = t * t;
  // sin(pi t / 4) = t s(z), 2^-28.2; cos(pi t / 4) = 1 + z c(z), 2^-33.9: minimax on |t| <= 1.
  float s = -0x1.2d9302p-15f;
  s = s * z + 0x1.465e92p-9f;
  s = s * z + -0x1.4abbbap-4f;
  s = s * z + 0x1.921fb6p-1f;
  float c = 0x1.d9d57ep-19f;
  c = c * z + -0x1.55c5e0p-12f;
  c = c * z + 0x1.03c1dep-6f;
  c = c * z + -0x1.3bd3ccp-2f;
  const std::uint32_t sine = bit_cast<std::uint32_t>(t * s);
  const std::uint32_t cosine = bit_cast<std::uint32_t>(1.0f + z * c);
  // Rotation by quarters: odd quarters swap sine and cosine; their signs follow the quadrant.
  const std::uint32_t swap = (sine ^ cosine) & (0u - (quarter & 1u));
  const std::uint32_t cosine_sign = ((quarter + 1u) & 2u) << 30;
  const std::uint32_t sine_sign = (quarter & 2u) << 30;
  return {radius * bit_cast<float>((cosine ^ swap) ^ cosine_sign), radius * bit_cast<float>((sine ^ swap) ^ sine_sign)};
}

}  // namespace thimble
