#pragma once
// Files of 16-bit tokens in llm.c's format: 256 little-endian int32 {20240520, 1, number of tokens, 0 ...}, then the
// tokens as uint16.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/files/file_stream.h>

namespace thimble::data {

inline constexpr std::size_t tokens_header_bytes = 256 * 4;

/// The number of tokens in a file. Reads only the header. Throws FileError for another magic number or version, a
/// negative count, or a file that does not end exactly after the tokens.
std::int64_t token_count(const InputFile& file);

/// The bytes of a file of these tokens. Throws ValueError for more than 2^31 - 1 tokens.
std::vector<std::byte> format_tokens(std::span<const std::uint16_t> tokens);

/// Writes a file that appears under its name only when complete. Throws ValueError as format_tokens, FileError.
void write_tokens(const std::string& path, std::span<const std::uint16_t> tokens);

}  // namespace thimble::data
