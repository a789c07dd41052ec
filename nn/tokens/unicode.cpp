#include <thimble/nn/tokens/unicode.h>

#include <cstdlib>
#include <memory>
#include <new>

#include <utf8proc.h>

#include <thimble/core/files/printable.h>

namespace thimble::data {
namespace unicode_detail {

constexpr std::uint32_t code_points = 0x110000;  // of Unicode; byte b that is not UTF-8 is code_points + b
constexpr std::uint32_t before_finals = 0x11A7;  // a Hangul vowel; utf8proc 2.8 drops it after a syllable

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

void append_nfc(std::string& out, std::string_view utf8) {
  utf8proc_uint8_t* form = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size =
      utf8proc_map(bytes_of(utf8), static_cast<utf8proc_ssize_t>(utf8.size()), &form, options);
  if (size < 0) throw std::bad_alloc();  // the only error that UTF-8 has
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(form, std::free);
  out.append(reinterpret_cast<const char*>(form), static_cast<std::size_t>(size));
}

}  // namespace unicode_detail

Character character_at(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = 0;
  const std::string_view rest = text.substr(at, 4);
  const auto size = utf8proc_iterate(unicode_detail::bytes_of(rest), static_cast<utf8proc_ssize_t>(rest.size()), &code);
  if (size <= 0) return {unicode_detail::code_points + first, 1};
  return {static_cast<std::uint32_t>(code), static_cast<std::size_t>(size)};
}

void append_character(std::string& text, std::uint32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

CharacterClass class_of(std::uint32_t code) {
  if (code >= unicode_detail::code_points) return CharacterClass::other;
  if ((code >= '\t' && code <= '\r') || code == 0x85) return CharacterClass::space;  // controls with White_Space
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CharacterClass::space;
    default:
      return CharacterClass::other;
  }
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    // Line by line, since utf8proc keeps four bytes a character. Nothing composes with a line break or before_finals.
    std::size_t end = at;
    while (end < text.size() && (end == at || text[end - 1] != '\n')) {
      const Character next = character_at(text, end);
      if (next.code >= unicode_detail::code_points || (next.code == unicode_detail::before_finals && end > at)) break;
      end += next.bytes;
    }
    if (end > at) {
      unicode_detail::append_nfc(out, text.substr(at, end - at));
    } else {
      out += text[end++];
    }
    at = end;
  }
  return out;
}

}  // namespace thimble::data
