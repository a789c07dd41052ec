#pragma once
// Random words for CPU kernels, in vector-friendly loops.

#include <cstdint>

#include <thimble/core/philox.h>

namespace thimble::kernels {

/// Words of `blocks` neighbouring Philox blocks of a sample: block b of them lies in words[4 b .. 4 b + 3].
inline void sample_words(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                         std::uint32_t* words) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock bits = random_block(site, first_block + static_cast<std::uint32_t>(b), sample);
    words[4 * b] = bits.w0;
    words[4 * b + 1] = bits.w1;
    words[4 * b + 2] = bits.w2;
    words[4 * b + 3] = bits.w3;
  }
}

}  // namespace thimble::kernels
