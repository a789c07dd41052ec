#pragma once
// Stores of the public formats' files.

#include <cstdint>
#include <span>
#include <string>

#include <thimble/nn/data/store.h>

namespace thimble::data {

/// IDX files as read_idx reads them (nn/data/idx.h). A plain one is checked and stays where it is; a compressed one is
/// decompressed into memory, once. Throws as read_idx.
ImageStore open_idx(const std::string& images_path, const std::string& labels_path, std::int64_t classes = 10);

/// CIFAR-10's batches as read_cifar10 reads them (nn/data/cifar.h); they stay where they are. Throws as read_cifar10.
ImageStore open_cifar10(std::span<const std::string> paths);

/// A file of tokens (nn/data/tokens.h), checked as read_tokens does; it stays where it is.
TokenStore open_tokens(const std::string& path);

}  // namespace thimble::data
