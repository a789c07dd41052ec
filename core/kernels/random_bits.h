#pragma once
// From a random call's site to its random words.

#include <cstdint>

#include <thimble/core/generator.h>
#include <thimble/core/philox.h>

namespace thimble::kernels {

/// The random words of a call at position (index0, index1): key = seed, counter = (index0, index1, site, step). A call
/// that draws per sample counts blocks of four elements within the sample in index0 and samples of the whole batch in
/// index1; a call that draws by element number alone counts blocks in (low, high) words.
THIMBLE_HD constexpr PhiloxBlock random_block(const RandomSite& site, std::uint32_t index0,
                                              std::uint32_t index1) noexcept {
  return philox4x32({{index0, index1, site.site, static_cast<std::uint32_t>(site.step)}},
                    {{static_cast<std::uint32_t>(site.seed), static_cast<std::uint32_t>(site.seed >> 32)}});
}

/// Words of `blocks` neighbouring Philox blocks of a sample: block b of them lies in words[4 b .. 4 b + 3].
inline void sample_words(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                         std::uint32_t* words) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock bits = random_block(site, first_block + static_cast<std::uint32_t>(b), sample);
    words[4 * b] = bits.word[0];
    words[4 * b + 1] = bits.word[1];
    words[4 * b + 2] = bits.word[2];
    words[4 * b + 3] = bits.word[3];
  }
}

}  // namespace thimble::kernels
