#pragma once
// Text as Unicode characters: their classes, and Normalization Form C (utf8proc).
//
// Text is bytes. Where they are not UTF-8 (RFC 3629), each byte is a character of its own: no letter, number or space,
// which nothing combines with. So no byte is ever lost or changed for not being UTF-8.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thimble::data {

/// What patterns of tokenizers ask: \p{L}, \p{N}, \s (the property White_Space), or none of these.
enum class CharacterClass : std::uint8_t { other, letter, number, space };

struct Character {
  std::uint32_t code;  ///< its code point; for a byte that is not UTF-8 above all code points
  std::size_t bytes;   ///< in the text
};

/// The character that `text` has at byte `at`, which is below its size.
Character character_at(std::string_view text, std::size_t at);

/// Appends a code point in UTF-8.
void append_character(std::string& text, std::uint32_t code);

CharacterClass class_of(std::uint32_t code);

/// The text in Normalization Form C (Unicode Standard Annex #15).
std::string to_nfc(std::string_view text);

}  // namespace thimble::data
