#include <thimble/memory/units.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>

#include <thimble/core/error.h>

namespace thimble {
namespace {

struct Unit {
  std::string_view name;  // lower case
  std::int64_t bytes;
};

constexpr std::array<Unit, 10> units = {{{"", 1},
                                         {"b", 1},
                                         {"kb", 1'000},
                                         {"mb", 1'000'000},
                                         {"gb", 1'000'000'000},
                                         {"tb", 1'000'000'000'000},
                                         {"kib", std::int64_t{1} << 10},
                                         {"mib", std::int64_t{1} << 20},
                                         {"gib", std::int64_t{1} << 30},
                                         {"tib", std::int64_t{1} << 40}}};

// Input for a one-line message: cut to 40 characters, unprintable ones masked.
std::string shown(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string result = "\"";
  for (const char c : text.substr(0, longest)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > longest ? "...\"" : "\"");
}

[[noreturn]] void refuse_text(std::string_view text, const std::string& why) {
  throw ValueError("size: " + shown(text) + " " + why +
                   "; expected bytes (1073741824) or a number with a unit: B, KB, MB, GB, TB (powers of 1000), KiB, "
                   "MiB, GiB, TiB (powers of 1024), as in 512MiB or 4.99GB");
}

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Removes and returns the digits at the front of `text`.
std::string_view take_digits(std::string_view& text) noexcept {
  std::size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

const Unit* find_unit(std::string_view name) noexcept {
  for (const Unit& unit : units) {
    bool is_equal = unit.name.size() == name.size();
    for (std::size_t i = 0; is_equal && i < name.size(); ++i) {
      const char lower = name[i] >= 'A' && name[i] <= 'Z' ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
      is_equal = lower == unit.name[i];
    }
    if (is_equal) return &unit;
  }
  return nullptr;
}

}  // namespace

double without_sign_of_nan(double value) noexcept { return std::isnan(value) ? std::abs(value) : value; }

std::string format_real(double value) {
  std::array<char, 64> digits{};
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), without_sign_of_nan(value));
  return {digits.data(), result.ptr};
}

std::string format_short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", without_sign_of_nan(value));
  return text;
}

std::string format_grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string format_bytes(std::int64_t bytes) {
  if (bytes >= 0) return memory::human_bytes(static_cast<std::size_t>(bytes));
  // Two's complement negation is right even for the smallest value, which has no positive counterpart.
  std::string text = memory::human_bytes(~static_cast<std::size_t>(bytes) + 1);
  return text.insert(0, 1, '-');
}

std::int64_t parse_size(std::string_view text) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  std::string_view rest = text;
  if (rest.empty()) refuse_text(text, "is empty");
  if (rest.front() == '-') refuse_text(text, "is negative");
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  bool has_point = false;
  if (!rest.empty() && rest.front() == '.') {
    has_point = true;
    rest.remove_prefix(1);
    fraction = take_digits(rest);
  }
  if (whole.empty() || (has_point && fraction.empty())) refuse_text(text, "is not a number of bytes");
  if (!rest.empty() && rest.front() == ' ') {
    rest.remove_prefix(1);
    if (rest.empty()) refuse_text(text, "ends with a space");
  }
  const Unit* unit = find_unit(rest);
  if (unit == nullptr) refuse_text(text, "has no known unit");
  if (has_point && unit->bytes == 1) refuse_text(text, "has a fraction of a byte");

  // floor(unit * 0.d1 d2 ...), from the last digit to the first: flooring at each step floors the whole.
  std::int64_t part = 0;
  for (std::size_t i = fraction.size(); i > 0; --i) part = ((fraction[i - 1] - '0') * unit->bytes + part) / 10;
  std::int64_t count = 0;
  for (const char c : whole) {
    const std::int64_t digit = c - '0';
    if (count > (largest - digit) / 10) refuse_text(text, "is more than 2^63 - 1 bytes");
    count = count * 10 + digit;
  }
  if (count > (largest - part) / unit->bytes) refuse_text(text, "is more than 2^63 - 1 bytes");
  return count * unit->bytes + part;
}

}  // namespace thimble

namespace thimble::memory {

std::string human_bytes(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // A value that would print as 1024.00 moves to the next unit.
  while (value >= 1023.995 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, units[unit]);
  return text;
}

std::string exact_bytes(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  return human_bytes(bytes) + " (" + std::to_string(bytes) + " B)";
}

}  // namespace thimble::memory
