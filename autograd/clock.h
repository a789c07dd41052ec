#pragma once
// Seconds since some fixed moment.

#include <chrono>

namespace thimble::tape_detail {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace thimble::tape_detail
