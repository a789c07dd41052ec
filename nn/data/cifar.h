#pragma once
// CIFAR's binary batches (www.cs.toronto.edu/~kriz/cifar.html): records of the labels and 3072 bytes, the red, green
// and blue planes of a 32x32 image. CIFAR-10 has one label; CIFAR-100 a coarse and a fine one, of which the fine one,
// of 100 classes, is taken.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <thimble/nn/data/images.h>

namespace thimble::data {

/// How a batch lies in its file.
struct CifarForm {
  std::string_view name;
  std::uint64_t labels = 1;  ///< bytes before the planes; the last one is the class
  std::int64_t classes = 10;

  static constexpr std::uint64_t side = 32, channels = 3, plane = side * side;
  constexpr std::uint64_t record() const noexcept { return labels + channels * plane; }
  /// Throws FileError unless a file of so many bytes has one or more whole records.
  void check_size(const std::string& path, std::uint64_t bytes) const;
  /// The class in the label at byte `at` of a file. Throws FileError where there is no such class.
  std::uint16_t check_label(const std::string& path, std::uint64_t at, std::byte label) const;
};
inline constexpr CifarForm cifar10{"CIFAR-10", 1, 10}, cifar100{"CIFAR-100", 2, 100};

/// Appends the records of a batch to `images`, planes interleaved to (N, H, W, C). `path` is for messages. Throws
/// FileError when the file is empty, is not a whole number of records of 3073 (CIFAR-100: 3074) bytes, or has a label
/// that is no class; ShapeError when `images` has images of another size. `images` is then unchanged.
void append_cifar(const CifarForm& form, std::span<const std::byte> file, const std::string& path, Images& images);

/// Reads one batch, or several in order. Throws as append_cifar.
Images read_cifar(const CifarForm& form, std::span<const std::string> paths);

/// The same of CIFAR-10.
void append_cifar10(std::span<const std::byte> file, const std::string& path, Images& images);
Images read_cifar10(std::span<const std::string> paths);

}  // namespace thimble::data
