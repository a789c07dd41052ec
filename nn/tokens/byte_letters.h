#pragma once
// Bytes as printable characters, as GPT-2's vocabulary and all after it write their tokens: "Ġthe" is " the"
// (openai/gpt-2, encoder.py, bytes_to_unicode).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace thimble::data {

/// The character that stands for a byte: itself where Latin-1 has a visible one, else one from U+0100 on.
std::uint32_t letter_of(std::uint8_t byte);

/// Each byte as its letter, in UTF-8.
std::string to_letters(std::string_view bytes);
/// The bytes again; none where a character stands for no byte.
std::optional<std::string> from_letters(std::string_view letters);

}  // namespace thimble::data
