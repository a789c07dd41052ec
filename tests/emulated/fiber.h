#pragma once
// A stack that a function runs on, and that it can leave and be resumed on.

#include <cstddef>
#include <memory>

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
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
  void *own_ = nullptr, *host_ = nullptr;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<std::byte[]> stack_;
};

}  // namespace thimble::emulated
