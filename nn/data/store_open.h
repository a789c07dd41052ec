#pragma once
// Stores of the public formats' files.

#include <cstdint>
#include <span>
#include <string>

#include <thimble/nn/data/cifar.h>
#include <thimble/nn/data/store.h>

namespace thimble::data {

/// IDX files as read_idx reads them (nn/data/idx.h). A plain one is checked and stays where it is; a compressed one is
/// decompressed into memory, once. Throws as read_idx.
ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes = 0);

/// CIFAR's batches as read_cifar reads them (nn/data/cifar.h); they stay where they are. Throws as read_cifar.
ImageStore open_cifar(const CifarForm& form, std::span<const std::string> paths);
ImageStore open_cifar10(std::span<const std::string> paths);

/// A file of tokens (nn/data/tokens.h), checked as read_tokens does; or, where its name ends in `.npy`, an array of one
/// axis of '<u2', '<u4' or '<i4'. It stays where it is. Throws FileError.
TokenStore open_tokens(const std::string& path);

}  // namespace thimble::data
