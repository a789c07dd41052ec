#pragma once
// Bytes and numbers in human-readable form.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

/// memory::human_bytes with a sign for negative values: "512 B", "16.00 KiB", "-4.99 GiB".
std::string format_bytes(std::int64_t bytes);
template <std::unsigned_integral T>
std::string format_bytes(T bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

/// A NaN's sign is meaningless and varies between machines, but printing would show it.
double without_sign_of_nan(double value) noexcept;

/// The shortest decimal text that reads back as the same double: "0.1", "1e+300", "nan", "inf".
std::string format_real(double value);

/// Six significant digits, as %g: "0.1", "1e+300", "nan".
std::string format_short(double value);

/// Groups of three digits: "1,234,567", "-1,024".
std::string format_grouped(std::int64_t value);
template <std::unsigned_integral T>
std::string format_grouped(T value) {
  return format_grouped(static_cast<std::int64_t>(value));
}

/// Reads a SIZE: digits with an optional decimal part, an optional space, and a unit B, KB, MB, GB, TB (powers of 1000)
/// or KiB, MiB, GiB, TiB (powers of 1024), upper or lower case; without a unit, a whole number of bytes. The arithmetic
/// is exact and rounds fractions of a byte down, so a budget never grows ("4.99GB" is 4,990,000,000).
/// Throws ValueError, naming the text and the expected forms, for anything else: a sign, NaN, exponents, unknown units,
/// a fraction of bytes, more than 2^63 - 1 bytes.
std::int64_t parse_size(std::string_view text);

}  // namespace thimble

// ---- Formatting of byte counts.

namespace thimble::memory {

/// Binary units with two decimals: "0 B", "1000 B", "1.50 KiB", "14.73 GiB".
std::string human_bytes(std::size_t bytes);

/// Human and exact: "1.50 KiB (1536 B)"; below 1 KiB only "1000 B".
std::string exact_bytes(std::size_t bytes);

}  // namespace thimble::memory
