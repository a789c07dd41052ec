#pragma once
// Every allocator of the C library, forwarded to the real one and watched (heap_watch.cpp): how often the heap is
// asked, and what is asked of it inside of launches. `operator new` comes down to malloc.

#include <cstddef>
#include <cstdlib>  // and with it __GLIBC__, where that is the library

#include "sanitizer.h"

#if defined(__GLIBC__) && !defined(THIMBLE_TEST_HAS_SANITIZER)
#define THIMBLE_TEST_WATCHES_HEAP

namespace heap_watch {

inline constexpr std::size_t allowed_bytes = 4096;

/// Calls of an allocator since the program began, of all threads.
long heap_calls() noexcept;

/// Counts offences from its construction on: allocations of more than allowed_bytes bytes inside of a launch.
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
