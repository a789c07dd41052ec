#pragma once
// Formatting of byte counts.

#include <cstddef>
#include <string>

namespace thimble::memory {

/// Binary units with two decimals: "0 B", "1000 B", "1.50 KiB", "14.73 GiB".
std::string human_bytes(std::size_t bytes);

/// Human and exact: "1.50 KiB (1536 B)"; below 1 KiB only "1000 B".
std::string exact_bytes(std::size_t bytes);

}  // namespace thimble::memory
