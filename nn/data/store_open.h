#pragma once
// Stores of the public formats' files.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <thimble/nn/data/store.h>

namespace thimble::data {

/// How CIFAR's binary batches lie in their files (www.cs.toronto.edu/~kriz/cifar.html): records of the labels and 3072
/// bytes, the red, green and blue planes of a 32x32 image. CIFAR-10 has one label; CIFAR-100 a coarse one before the
/// class, one of 100.
struct CifarForm {
  std::string_view name;
  std::uint64_t labels = 1;  ///< bytes before the planes; the last one is the class
  std::int64_t classes = 10;

  constexpr std::uint64_t record() const noexcept { return labels + 3072; }
};
inline constexpr CifarForm cifar10{"CIFAR-10", 1, 10}, cifar100{"CIFAR-100", 2, 100};

/// IDX files as read_idx reads them (nn/data/idx.h). A plain one is checked and stays where it is; a compressed one is
/// decompressed into memory, once. Throws as read_idx.
ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes = 0);

/// One of CIFAR's batches, or several in order; they stay where they are. Throws FileError when a file is empty, is not
/// a whole number of records, or has a label that is no class.
ImageStore open_cifar(const CifarForm& form, std::span<const std::string> paths);

/// A file of tokens (nn/data/tokens.h), or, where its name ends in `.npy`, an array of one axis of '<u2', '<u4' or
/// '<i4'. It stays where it is. Throws FileError, for a file of tokens as token_count.
TokenStore open_tokens(const std::string& path);

}  // namespace thimble::data
