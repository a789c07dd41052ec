#pragma once
// Sizes in whole units.

#include <cstddef>
#include <type_traits>

namespace thimble {

/// a / b, rounded up, for a >= 0 and b > 0.
template <class T>
constexpr T ceil_div(T a, std::type_identity_t<T> b) noexcept {
  return (a + b - 1) / b;
}

/// `n` rounded up to a multiple of `unit`, for n >= 0 and unit > 0.
template <class T>
constexpr T round_up(T n, std::type_identity_t<T> unit) noexcept {
  return ceil_div(n, unit) * unit;
}

/// `n` rounded up to a multiple of `power`, a power of two.
constexpr std::size_t round_up_to_power(std::size_t n, std::size_t power) noexcept {
  return (n + power - 1) & ~(power - 1);
}

}  // namespace thimble
