#pragma once
// One lock per stack of resources.
//
// Policy
// - A stack (trace over ledger over limit over arena) shares the lock of its bottom: a request is one transaction for
//   all of them, so ledger, trace and arena agree about the order on any threads.
// - Resource's public calls take the lock, then go down the stack through the do_ functions, which expect it held.
// - It is a spin lock: one atomic exchange takes it, a store releases it. One thread makes nearly all requests of a
//   training step, so the lock is nearly always free.
// - Waiters spin briefly, then yield. Only commits and block moves hold the lock for long.

#include <atomic>
#include <memory>
#include <utility>

#include <thimble/core/tensor/resource.h>

namespace thimble::memory {

/// Not recursive. Meets the standard's BasicLockable requirements (std::lock_guard).
class ResourceLock {
 public:
  void lock() noexcept {
    while (is_taken_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  void wait() const noexcept;  // until it looks free

  std::atomic<bool> is_taken_{false};
};

/// A resource with a lock that the resources stacked on it share. Derived classes implement the do_ functions, which
/// are called with the lock held. A final class on the hot path may repeat the bodies of allocate and deallocate, so
/// that its do_ functions are called without virtual dispatch.
class LockedResource : public Resource {
 public:
  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;  ///< nullptr does nothing
  void relabel(Block* block, Category category) noexcept final;

  const std::shared_ptr<ResourceLock>& lock() const noexcept { return lock_; }

 protected:
  explicit LockedResource(std::shared_ptr<ResourceLock> lock) : lock_(std::move(lock)) {}

  virtual Block* do_allocate(const Request& request) = 0;
  virtual void do_deallocate(Block* block, Stream stream) noexcept = 0;
  virtual void do_relabel(Block* block, Category category) noexcept = 0;

 private:
  friend class Decorator;
  std::shared_ptr<ResourceLock> lock_;
};

/// A policy over any resource, which it owns. It shares the upstream's lock, or makes one if the upstream has none.
class Decorator : public LockedResource {
 public:
  Device device() const noexcept final { return upstream_->device(); }
  /// The resource below it.
  const Resource& upstream() const noexcept { return *upstream_; }

 protected:
  explicit Decorator(std::shared_ptr<Resource> upstream);

  Block* upstream_allocate(const Request& request) {
    return locked_ != nullptr ? locked_->do_allocate(request) : upstream_->allocate(request);
  }
  void upstream_deallocate(Block* block, Stream stream) noexcept {
    locked_ != nullptr ? locked_->do_deallocate(block, stream) : upstream_->deallocate(block, stream);
  }
  void upstream_relabel(Block* block, Category category) noexcept {
    locked_ != nullptr ? locked_->do_relabel(block, category) : upstream_->relabel(block, category);
  }

 private:
  std::shared_ptr<Resource> upstream_;
  LockedResource* locked_;  // upstream_ if it has a lock, else null
};

}  // namespace thimble::memory
