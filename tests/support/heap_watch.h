#pragma once
// Forwards every allocator of the C library to the real one and counts its calls, and requests inside launches
// (heap_watch.cpp). `operator new` ends in malloc.

#include <cstddef>
#include <cstdlib>  // defines __GLIBC__ if that is the library

#include "sanitizer.h"

#if defined(__GLIBC__) && !defined(THIMBLE_TEST_HAS_SANITIZER)
#define THIMBLE_TEST_WATCHES_HEAP

namespace heap_watch {

inline constexpr std::size_t allowed_bytes = 4096;

/// Allocator calls of all threads since the program began.
long heap_calls() noexcept;

/// Counts offences while it lives: allocations of more than allowed_bytes bytes inside a launch.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  int count() const noexcept;
  static std::size_t largest() noexcept;
};

}  // namespace heap_watch
#endif
