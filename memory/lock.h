#pragma once
// One lock per stack of resources.
//
// Policy
// - A stack (trace over ledger over limit over arena) shares the lock of its bottom: a request is one transaction for
//   all of them, so ledger, trace and arena never disagree about order, whichever threads ask.
// - The thread that holds the lock may take it again (a decorator calls its upstream); that costs no atomic
//   read-modify-write. Taking it costs one, releasing it none: half of std::mutex, on a path that is some ten
//   nanoseconds long.
// - Waiters spin briefly, then yield: what is under the lock is short except for a commit of pages.
//
// Terms
//   owner   the thread inside, named by the address of one of its thread-local bytes
//   depth   how often the owner has taken the lock

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include <thimble/core/resource.h>

namespace thimble {

/// A recursive spin lock. Meets the standard's Lockable requirements (std::lock_guard, std::unique_lock).
class ResourceLock {
 public:
  void lock() noexcept {
    const char* const self = this_thread();
    if (owner_.load(std::memory_order_relaxed) == self) {
      ++depth_;
      return;
    }
    for (int spins = 0; !try_take(self); ++spins) {
      if (spins >= 64) std::this_thread::yield();
    }
  }

  bool try_lock() noexcept {
    const char* const self = this_thread();
    if (owner_.load(std::memory_order_relaxed) == self) {
      ++depth_;
      return true;
    }
    return try_take(self);
  }

  void unlock() noexcept {
    if (depth_ > 0) {
      --depth_;
      return;
    }
    owner_.store(nullptr, std::memory_order_release);
  }

 private:
  static const char* this_thread() noexcept {
    static thread_local const char marker = 0;
    return &marker;
  }

  bool try_take(const char* self) noexcept {
    if (owner_.load(std::memory_order_relaxed) != nullptr) return false;
    const char* nobody = nullptr;
    return owner_.compare_exchange_strong(nobody, self, std::memory_order_acquire, std::memory_order_relaxed);
  }

  std::atomic<const char*> owner_{nullptr};
  std::uint32_t depth_ = 0;  // beyond the first time; written by the owner only
};

/// A resource with a lock that what is stacked on it shares.
class LockedResource : public Resource {
 public:
  const std::shared_ptr<ResourceLock>& lock() const noexcept { return lock_; }

 protected:
  /// The bottom of a stack: a lock of its own.
  LockedResource() : lock_(std::make_shared<ResourceLock>()) {}

  /// A decorator: the lock of `upstream`, or one of its own where upstream has none to share.
  explicit LockedResource(const Resource& upstream) {
    const auto* locked = dynamic_cast<const LockedResource*>(&upstream);
    lock_ = locked != nullptr ? locked->lock() : std::make_shared<ResourceLock>();
  }

 private:
  std::shared_ptr<ResourceLock> lock_;
};

}  // namespace thimble
