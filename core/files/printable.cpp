#include <thimble/core/files/printable.h>

#include <algorithm>
#include <cstdint>

namespace thimble {
namespace {

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    out += {'\\', 'x', digits[code >> 4], digits[code & 15]};
  }
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7F;
  return first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // U+0080 to U+009F
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length == 0 || text.size() < length) return 0;
  std::uint32_t code = length == 1 ? first : first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3Fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  return code >= least[length] && !is_surrogate && code <= 0x10FFFF ? length : 0;
}

std::string printable(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = std::max<std::size_t>(1, utf8_length(text));
    const std::string_view character = text.substr(0, length);
    const bool is_text = utf8_length(text) > 0 && !is_control(character);
    if (is_text || kept.find(character) != std::string_view::npos) {
      out += character;
    } else {
      append_escaped(out, character);
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace thimble
