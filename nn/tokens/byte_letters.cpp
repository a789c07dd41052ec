#include <thimble/nn/tokens/byte_letters.h>

#include <array>

#include <thimble/nn/tokens/unicode.h>

namespace thimble::data {
namespace byte_letters_detail {

constexpr std::uint32_t no_byte = 256, hidden_from = 0x100;

constexpr bool is_visible(std::uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Table {
  std::array<std::uint32_t, 256> letters{};
  std::array<std::uint32_t, 512> bytes{};

  constexpr Table() {
    bytes.fill(no_byte);
    std::uint32_t hidden = hidden_from;
    for (std::uint32_t byte = 0; byte < letters.size(); ++byte) {
      letters[byte] = is_visible(byte) ? byte : hidden++;
      bytes[letters[byte]] = byte;
    }
  }
};

constexpr Table table;

}  // namespace byte_letters_detail

std::uint32_t letter_of(std::uint8_t byte) { return byte_letters_detail::table.letters[byte]; }

std::string to_letters(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) append_character(letters, letter_of(static_cast<std::uint8_t>(byte)));
  return letters;
}

std::optional<std::string> from_letters(std::string_view letters) {
  const auto& byte_of = byte_letters_detail::table.bytes;
  std::string bytes;
  for (std::size_t at = 0; at < letters.size();) {
    const Character c = character_at(letters, at);
    if (c.code >= byte_of.size() || byte_of[c.code] == byte_letters_detail::no_byte) return std::nullopt;
    bytes += static_cast<char>(byte_of[c.code]);
    at += c.bytes;
  }
  return bytes;
}

}  // namespace thimble::data
