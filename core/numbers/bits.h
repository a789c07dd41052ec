#pragma once
// Bit arithmetic shared by the number formats and the elementary functions, so that loops have no branches.

#include <cstdint>

#include <thimble/core/config.h>

namespace thimble {

/// std::bit_cast for host and device code.
template <class To, class From>
THIMBLE_HD constexpr To bit_cast(From from) noexcept {
  return __builtin_bit_cast(To, from);
}

/// `x` if a < b, else `y`, for a, b < 2^(bits - 1), in bit arithmetic. With a conditional the compiler may move the
/// floating operations that make x or y into a branch and then, since they could trap, not vectorize the loop.
template <class U>
THIMBLE_HD constexpr U select_if_less(U a, U b, U x, U y) noexcept {
  const U mask = U{0} - ((a - b) >> (8 * sizeof(U) - 1));
  return y ^ ((x ^ y) & mask);
}

}  // namespace thimble
