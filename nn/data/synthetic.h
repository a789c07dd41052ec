#pragma once
// Data made on the spot, for machines without the real ones: the same bytes for the same arguments, on every machine
// and with every compiler (integers, and float operations that IEEE 754 rounds exactly).

#include <cstddef>
#include <cstdint>
#include <string>

#include <thimble/nn/data/images.h>

namespace thimble::data {

/// English-like prose from a small stochastic grammar, exactly `bytes` bytes (the last sentence may be cut): paragraphs
/// in which the names, the pronouns, the place and the answers to questions stay consistent, so that a language model
/// gains from looking back. 55 distinct characters; 1 MB takes some milliseconds.
std::string synthetic_text(std::size_t bytes, std::uint64_t seed);

/// Number of classes that synthetic_images knows.
inline constexpr std::int64_t synthetic_classes = 64;

/// `count` images of pen strokes on a shaded ground. A class is a figure of four strokes, the same for every seed and
/// number of classes, so images of one seed can train and those of another test. Each image is drawn with its own
/// position, size, slant, pen, colours, a stray stroke and noise. Image i depends on the seed and i alone. Throws
/// ValueError unless count
/// >= 0, 8 <= size <= 1024, 1 <= channels <= 4, 2 <= classes <= synthetic_classes.
Images synthetic_images(std::int64_t count, std::int64_t size, std::int64_t channels, std::int64_t classes,
                        std::uint64_t seed);

}  // namespace thimble::data
