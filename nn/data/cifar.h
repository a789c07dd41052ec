#pragma once
// CIFAR-10's binary batches (www.cs.toronto.edu/~kriz/cifar.html): records of one label and 3072 bytes, the red, green
// and blue planes of a 32x32 image.

#include <cstddef>
#include <span>
#include <string>

#include <thimble/nn/data/images.h>

namespace thimble::data {

/// Appends the records of a batch to `images`, planes interleaved to (N, H, W, C). `path` is for messages. Throws
/// FileError when the file is empty, is not a whole number of records of 3073 bytes, or has a label above 9; ShapeError
/// when `images` has images of another size. `images` is then unchanged.
void append_cifar10(std::span<const std::byte> file, const std::string& path, Images& images);

/// Reads one batch, or several in order. Throws as append_cifar10.
Images read_cifar10(std::span<const std::string> paths);

}  // namespace thimble::data
