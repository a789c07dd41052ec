#pragma once
// SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"): a 64-bit mixing function that
// also serves as a generator. It chooses the samples of batches and makes synthetic data; dropout and initialization
// use the counter-based generator of core.

#include <cstdint>

namespace thimble::data {

/// The first number of the generator seeded with `x`; a bijection of 64-bit integers.
constexpr std::uint64_t splitmix64(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The sequence of random numbers of a seed.
class SplitMix {
 public:
  constexpr explicit SplitMix(std::uint64_t seed) noexcept : state_(seed) {}

  constexpr std::uint64_t next() noexcept {
    const std::uint64_t value = splitmix64(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return value;
  }

  /// Uniform in 0 .. count - 1; count > 0. The bias, count / 2^64, cannot be observed.
  constexpr std::uint64_t below(std::uint64_t count) noexcept { return next() % count; }

  /// Uniform in [low, high) on a grid of 2^24 values.
  constexpr float uniform(float low, float high) noexcept {
    return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);
  }

 private:
  std::uint64_t state_;
};

}  // namespace thimble::data
