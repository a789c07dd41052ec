#include <thimble/bench/report/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <thimble/memory/units.h>

namespace thimble::report {
namespace {

bool starts_code_point(char c) noexcept { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Width of a character in units of the font size: about as in DejaVu Sans, the widest of the common system fonts.
double advance(char c) noexcept {
  if (!starts_code_point(c)) return 0;
  if (std::string_view("ijl").find(c) != std::string_view::npos) return 0.28;
  if (std::string_view(" .,:;'|!").find(c) != std::string_view::npos) return 0.33;
  if (std::string_view("frt()[]-/I").find(c) != std::string_view::npos) return 0.4;
  if (std::string_view("mwMW%@").find(c) != std::string_view::npos) return 0.93;
  if (c >= 'A' && c <= 'Z') return 0.7;
  if (c >= '0' && c <= '9') return 0.64;
  return 0.615;
}

}  // namespace

std::string format_fixed(double value, int decimals) {
  if (!std::isfinite(value)) return format_real(value);
  std::array<char, 512> digits{};
  const auto result =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed, decimals);
  std::string text(digits.data(), result.ptr);
  if (text.front() == '-' && text.find_first_of("123456789") == std::string::npos) text.erase(0, 1);  // no "-0.00"
  std::size_t at = std::min(text.find('.'), text.size());
  const std::size_t first = text.front() == '-' ? 1 : 0;
  while (at > first + 3) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string format_trimmed(double value, int decimals) {
  std::string text = format_fixed(value, decimals);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string format_quantity(double value, Unit unit, int decimals) {
  if (std::isnan(value)) return "not a number";
  switch (unit) {
    case Unit::bytes:
      if (std::abs(value) < 9.2e18) return format_bytes(std::llround(value));
      return format_real(value) + " B";
    case Unit::milliseconds:
      return format_fixed(value, decimals) + " ms";
    case Unit::percent:
      return format_fixed(value * 100, decimals) + " %";
    case Unit::plain:
      break;
  }
  return format_fixed(value, decimals);
}

std::string format_percent(double share) { return format_quantity(share, Unit::percent, 1); }

std::string format_most_percent(double share) {
  return format_percent(std::ceil(std::max(0.0, 1000 * share - 1e-6)) / 1000);
}

std::string format_exact(double value, Unit unit) {
  if (unit == Unit::bytes) value = std::round(value);
  const bool is_whole = std::abs(value) < 9.0e15 && value == std::floor(value);
  const std::string digits = is_whole ? format_fixed(value, 0) : format_real(value);
  switch (unit) {
    case Unit::bytes:
      return digits + (value == 1 ? " byte" : " bytes") + " (" + format_quantity(value, unit, 2) + ")";
    case Unit::milliseconds:
      return digits + " ms";
    case Unit::percent:
      return format_trimmed(value * 100, 6) + " %";
    case Unit::plain:
      break;
  }
  return digits;
}

std::string format_setting(const Setting& setting) {
  if (const auto* text = std::get_if<std::string>(&setting.second)) return *text;
  if (const auto* integer = std::get_if<std::int64_t>(&setting.second)) return std::to_string(*integer);
  return format_real(std::get<double>(setting.second));
}

std::string display_setting(const Setting& setting) {
  const auto* integer = std::get_if<std::int64_t>(&setting.second);
  const bool is_long = integer != nullptr && (*integer >= 10'000 || *integer <= -10'000);
  return is_long ? format_grouped(*integer) : format_setting(setting);
}

std::string escape_markup(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default: {
        const auto code = static_cast<unsigned char>(c);
        const bool is_forbidden = (code < 0x20 && c != '\t' && c != '\n' && c != '\r') || code == 0x7F;
        if (is_forbidden) {
          result += "\xEF\xBF\xBD";
        } else {
          result += c;
        }
      }
    }
  }
  return result;
}

std::string escape_except_simple_tags(std::string_view text) {
  std::string result = escape_markup(text);
  for (const std::string_view tag : {"sub", "/sub", "sup", "/sup", "i", "/i", "b", "/b", "code", "/code", "br"}) {
    const std::string escaped = "&lt;" + std::string(tag) + "&gt;";
    for (std::size_t at = 0; (at = result.find(escaped, at)) != std::string::npos;) {
      result.replace(at, escaped.size(), "<" + std::string(tag) + ">");
    }
  }
  return result;
}

std::size_t display_width(std::string_view text) noexcept {
  std::size_t width = 0;
  for (const char c : text) width += starts_code_point(c) ? 1 : 0;
  return width;
}

double text_width(std::string_view text, double size, bool is_bold) noexcept {
  double width = 0;
  for (const char c : text) width += advance(c);
  return width * size * (is_bold ? 1.13 : 1.0);
}

std::string fit_text(const std::string& text, double size, double width, bool is_bold) {
  if (text_width(text, size, is_bold) <= width) return text;
  std::string result = text;
  while (!result.empty() && text_width(result, size, is_bold) + size > width) {
    do {
      const bool was_start = starts_code_point(result.back());
      result.pop_back();
      if (was_start) break;
    } while (!result.empty());
  }
  return result + "\xE2\x80\xA6";
}

std::vector<std::string> wrap_text(const std::string& text, double size, double width, std::size_t lines_max) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t space = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, space - start);
    const std::string longer = line.empty() ? word : line + " " + word;
    if (!line.empty() && text_width(longer, size) > width && lines.size() + 1 < lines_max) {
      lines.push_back(fit_text(line, size, width));
      line = word;
    } else {
      line = longer;
    }
    start = space + 1;
  }
  lines.push_back(fit_text(line, size, width));
  return lines;
}

}  // namespace thimble::report
