#pragma once
// The clock of TapeTimes.

#include <chrono>

namespace thimble::tape_detail {

/// Seconds since some fixed moment.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace thimble::tape_detail
