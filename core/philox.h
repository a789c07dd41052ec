#pragma once
// Philox4x32-10, a counter-based generator: 128 bits of counter and 64 bits of key in, 128 random bits out, no state.
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

#include <cstdint>

#include <thimble/core/config.h>
#include <thimble/core/generator.h>

namespace thimble {

/// Four 32-bit words: a counter, or the random bits made of it.
struct PhiloxBlock {
  std::uint32_t w0 = 0, w1 = 0, w2 = 0, w3 = 0;
  friend constexpr bool operator==(const PhiloxBlock&, const PhiloxBlock&) = default;
};

namespace philox_detail {

// One round; the key grows by the Weyl constants from round to round.
THIMBLE_HD constexpr PhiloxBlock round(const PhiloxBlock& c, std::uint32_t key0, std::uint32_t key1) noexcept {
  const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c.w0, product1 = std::uint64_t{0xCD9E8D57u} * c.w2;
  return {static_cast<std::uint32_t>(product1 >> 32) ^ c.w1 ^ key0, static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32) ^ c.w3 ^ key1, static_cast<std::uint32_t>(product0)};
}

// Rounds as a recursion of templates: straight-line code, which compilers turn into vectors over neighbouring counters.
template <int Rounds>
THIMBLE_HD constexpr PhiloxBlock rounds(const PhiloxBlock& c, std::uint32_t key0, std::uint32_t key1) noexcept {
  if constexpr (Rounds == 0) {
    return c;
  } else {
    return rounds<Rounds - 1>(round(c, key0, key1), key0 + 0x9E3779B9u, key1 + 0xBB67AE85u);
  }
}

}  // namespace philox_detail

/// The random bits of one counter under one key.
THIMBLE_HD constexpr PhiloxBlock philox4x32_10(const PhiloxBlock& counter, std::uint32_t key0,
                                               std::uint32_t key1) noexcept {
  return philox_detail::rounds<10>(counter, key0, key1);
}

/// The random bits of a random call at position (index0, index1): key = seed, counter = (index0, index1, site, step).
/// A call that draws per sample counts blocks of four elements within the sample in index0 and samples of the whole
/// batch in index1; a call that draws by element number alone counts blocks in (low, high) words.
THIMBLE_HD constexpr PhiloxBlock random_block(const RandomSite& site, std::uint32_t index0,
                                              std::uint32_t index1) noexcept {
  return philox4x32_10({index0, index1, site.site, static_cast<std::uint32_t>(site.step)},
                       static_cast<std::uint32_t>(site.seed), static_cast<std::uint32_t>(site.seed >> 32));
}

}  // namespace thimble
