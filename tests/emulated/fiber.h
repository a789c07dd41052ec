#pragma once
// A stack for a function that can be left and resumed.

#include <cstddef>
#include <memory>

#if !defined(__x86_64__) || defined(__SANITIZE_THREAD__)
#define THIMBLE_FIBERS_OF_THE_SYSTEM
#include <ucontext.h>
#endif

namespace thimble::emulated {

class Fiber {
 public:
  Fiber();
  /// The next resume() calls `entry` with `argument`. It must leave() at its end; do not resume it after that.
  void start(void (*entry)(void*), void* argument);
  void resume();
  void leave();

 private:
#if defined(THIMBLE_FIBERS_OF_THE_SYSTEM)
  ucontext_t own_, host_;
#else
  void run();

  void *own_ = nullptr, *host_ = nullptr;
  // AddressSanitizer's notes on both stacks.
  void *own_frames_ = nullptr, *host_frames_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<std::byte[]> stack_;
};

}  // namespace thimble::emulated
