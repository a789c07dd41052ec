#include <thimble/core/files/bytes.h>

#include <algorithm>
#include <limits>

namespace thimble {

std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept {
  std::int64_t product = static_cast<std::int64_t>(element_bytes);
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      is_empty = true;
    } else {
      if (product > std::numeric_limits<std::int64_t>::max() / size) return std::nullopt;
      product *= size;
    }
  }
  return is_empty ? 0 : static_cast<std::uint64_t>(product);
}

std::size_t find_invalid_bool(std::span<const std::byte> bytes) noexcept {
  const auto found = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  return static_cast<std::size_t>(found - bytes.begin());
}

std::string quote(std::string_view text, std::size_t longest) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, longest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += digits[code >> 4];
      out += digits[code & 15];
    }
  }
  out += text.size() > longest ? "'..." : "'";
  return out;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

}  // namespace thimble
