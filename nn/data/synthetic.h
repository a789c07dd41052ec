#pragma once
// Synthetic data, for machines without real data sets. Equal arguments give equal bytes on every machine and with every
// compiler (integers, and float operations that IEEE 754 rounds exactly).

#include <cstddef>
#include <cstdint>
#include <string>

#include <thimble/nn/data/images.h>

namespace thimble::data {

/// English-like prose from a small stochastic grammar, exactly `bytes` bytes (the last sentence may be cut): paragraphs
/// in which the names, the pronouns, the place and the answers to questions stay consistent, so that a language model
/// gains from looking back. 55 distinct characters; 1 MB takes some milliseconds.
std::string synthetic_text(std::size_t bytes, std::uint64_t seed);

/// Most classes of synthetic_images.
inline constexpr std::int64_t synthetic_classes = 64;

/// `count` images of pen strokes on a shaded ground. A class is a figure of four strokes, independent of the seed and
/// the number of classes, so one seed can train and another can test. Position, size, slant, pen, colours, a stray
/// stroke and noise vary from image to image. Image i depends only on the seed and i. Throws ValueError unless
/// 0 <= count <= 2^32, 8 <= size <= 1024, 1 <= channels <= 4, 2 <= classes <= synthetic_classes.
Images synthetic_images(std::int64_t count, std::int64_t size, std::int64_t channels, std::int64_t classes,
                        std::uint64_t seed);

}  // namespace thimble::data
