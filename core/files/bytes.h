#pragma once
// For untrusted bytes: integers of a given byte order, checked sizes, names that are safe to print.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace thimble {

/// The unsigned integer whose little-endian bytes begin at `bytes`.
template <class T>
constexpr T load_le(const std::byte* bytes) noexcept {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * i));
  return value;
}

/// The unsigned integer whose big-endian bytes begin at `bytes`.
template <class T>
constexpr T load_be(const std::byte* bytes) noexcept {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * (sizeof(T) - 1 - i)));
  return value;
}

/// Writes `value` as little-endian bytes.
template <class T>
constexpr void store_le(T value, std::byte* bytes) noexcept {
  static_assert(std::is_unsigned_v<T>);
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

/// Bytes of a dense array. nullopt when a size is negative or the product of the element size and all sizes exceeds
/// 2^63 - 1; a size of zero counts as one there, so that strides fit too.
std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept;

/// Index of the first byte that is neither 0 nor 1, the only values a C++ bool may hold; bytes.size() when all are.
std::size_t find_invalid_bool(std::span<const std::byte> bytes) noexcept;

/// `text` in single quotes for an error message: printable ASCII unchanged, other bytes as \xNN, cut after `longest`
/// characters ("'wte.weight'", "'a\x00b'...").
std::string quote(std::string_view text, std::size_t longest = 64);

/// The parts of `text` between separators, at least one.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The bytes of a string, array or vector, without copying.
template <class T>
std::span<const std::byte> bytes_of(const T& container) noexcept {
  return std::as_bytes(std::span(container));
}

}  // namespace thimble
