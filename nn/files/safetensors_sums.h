#pragma once
// Checksums of a safetensors file, in its metadata: `thimble.crc32c` is 8 hexadecimal digits for the header and 8 for
// each tensor's bytes, in the order of the tensors' names. The header's sum is taken with zeros in its place. Files
// without that key have no sums.

#include <cstddef>
#include <span>
#include <string>

#include <thimble/nn/files/safetensors.h>

namespace thimble {

inline constexpr std::string_view safetensors_sums_key = "thimble.crc32c";

/// Whether every tensor has its sum, and there is one.
bool has_sums(const SafetensorsHeader& header) noexcept;

/// The value of the key, with zeros for the header's sum.
std::string format_sums(const SafetensorsHeader& header);

/// Puts the header's sum into a formatted header (the length and JSON), if it has one.
void put_header_sum(std::string& formatted);

/// Moves sums from the metadata of a parsed header, where they are, to its tensors. `formatted` are the file's first
/// 8 + N bytes. Throws FileError if they are malformed, or the header has changed since it was written.
void take_sums(SafetensorsHeader& header, std::span<const std::byte> formatted, const std::string& path);

/// Throws FileError, naming the tensor, if the sum of its bytes is not the file's. They begin at `offset`.
void check_sum(const SafetensorsEntry& entry, std::uint32_t sum, const std::string& path, std::uint64_t offset);

// ---- Whether bytes of a file are numbers.

/// Whether no element is NaN or infinite; integers never are. `bytes` are whole elements, little-endian.
bool all_finite(SafetensorsDType dtype, std::span<const std::byte> bytes) noexcept;

}  // namespace thimble
