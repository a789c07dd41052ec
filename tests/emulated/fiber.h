#pragma once
// A stack that a function runs on, and that it can leave and be resumed on.

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
  /// resume() calls `entry` with `argument` next, which must leave() at its end and not be resumed then.
  void start(void (*entry)(void*), void* argument);
  void resume();
  void leave();

 private:
#if defined(THIMBLE_FIBERS_OF_THE_SYSTEM)
  ucontext_t own_, host_;
#else
  void run();

  void *own_ = nullptr, *host_ = nullptr;
  // What AddressSanitizer notes down of either stack.
  void *own_frames_ = nullptr, *host_frames_ = nullptr;
  const void* host_stack_ = nullptr;
  std::size_t host_stack_bytes_ = 0;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<std::byte[]> stack_;
};

}  // namespace thimble::emulated
