#pragma once
// Random words for CPU kernels, in vector-friendly loops.

#include <cstdint>

#include <thimble/core/generator.h>
#include <thimble/core/philox.h>

namespace thimble::kernels {

/// 128 random bits of a site: the counter is (index0, index1, site, step), the key is the seed.
constexpr PhiloxBlock random_block(const RandomSite& site, std::uint32_t index0, std::uint32_t index1) noexcept {
  return philox4x32({{index0, index1, site.site, static_cast<std::uint32_t>(site.step)}},
                    {{static_cast<std::uint32_t>(site.seed), static_cast<std::uint32_t>(site.seed >> 32)}});
}

/// Words of `blocks` neighbouring Philox blocks of a sample: block b of them lies in words[4 b .. 4 b + 3].
inline void sample_words(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                         std::uint32_t* words) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock bits = random_block(site, first_block + static_cast<std::uint32_t>(b), sample);
    for (int i = 0; i < 4; ++i) words[4 * b + i] = bits.word[i];
  }
}

}  // namespace thimble::kernels
