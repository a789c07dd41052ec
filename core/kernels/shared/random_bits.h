#pragma once
// From a random call's site to its random words.

#include <cstdint>

#include <thimble/core/numbers/philox.h>
#include <thimble/core/tensor/generator.h>

namespace thimble::kernels {

/// The random words of a call at position (index0, index1): key = seed, counter = (index0, index1, site, step). A call
/// that draws per sample counts blocks of four elements within the sample in index0 and samples of the whole batch in
/// index1; a call that draws only by element number counts blocks in (low, high) words.
THIMBLE_HD constexpr PhiloxBlock random_block(const RandomSite& site, std::uint32_t index0,
                                              std::uint32_t index1) noexcept {
  return philox4x32({{index0, index1, site.site, static_cast<std::uint32_t>(site.step)}},
                    {{static_cast<std::uint32_t>(site.seed), static_cast<std::uint32_t>(site.seed >> 32)}});
}

/// The words of `blocks` blocks random_block(site, first_block + b, sample), block b in words[4 b .. 4 b + 3];
/// first_block counts modulo 2^32.
void sample_words(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                  std::uint32_t* words);

}  // namespace thimble::kernels
