#pragma once
// One lock per stack of resources.
//
// Policy
// - A stack (trace over ledger over limit over arena) shares the lock of its bottom: a request is one transaction for
//   all of them, so ledger, trace and arena never disagree about order, whichever threads ask.
// - The public calls of Resource take the lock and go down the stack by the do_ functions, which expect it held.
// - A lock is biased towards the first thread that takes it: for that thread, taking and releasing are plain loads and
//   stores. The first other thread ends the bias for good, and from then on it is a spin lock. One thread makes nearly
//   all requests of a training step, and an atomic read-modify-write costs as much as the rest of a request.
// - Waiters spin briefly, then yield: what is under the lock is short except for a commit of pages.
//
// Terms
//   owner    the thread that the lock is biased to, named by the address of one of its thread-local bytes
//   revoke   end the bias: raise a flag, force a memory barrier on every thread (Linux's membarrier), wait until the
//            owner is outside. Either the owner's store "inside" is seen here, or the flag is seen there

#include <atomic>
#include <memory>

#include <thimble/core/tensor/resource.h>

namespace thimble {

/// Not recursive. Meets the standard's BasicLockable requirements (std::lock_guard); a Hold is a cheaper guard.
class ResourceLock {
 public:
  /// Takes the lock if that can be by the bias.
  bool enter_by_bias() noexcept {
    if (owner_.load(std::memory_order_relaxed) != this_thread()) return false;
    is_owner_inside_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // on the processor: the revoker's membarrier
    if (!is_revoked_.load(std::memory_order_relaxed)) return true;
    is_owner_inside_.store(false, std::memory_order_relaxed);
    return false;
  }

  /// Takes the lock. Returns whether it was taken by the bias; leave() needs to know.
  bool enter() noexcept {
    if (enter_by_bias()) return true;
    lock_shared();
    return false;
  }

  void leave(bool by_bias) noexcept {
    (by_bias ? is_owner_inside_ : is_taken_).store(false, std::memory_order_release);
  }

  void lock() noexcept { enter(); }

  void unlock() noexcept {
    const bool is_owner = owner_.load(std::memory_order_relaxed) == this_thread();
    leave(is_owner && is_owner_inside_.load(std::memory_order_relaxed));
  }

  /// Holds a lock for a scope.
  class Hold {
   public:
    explicit Hold(ResourceLock& lock) noexcept : lock_(lock), by_bias_(lock.enter()) {}
    ~Hold() { lock_.leave(by_bias_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    ResourceLock& lock_;
    bool by_bias_;
  };

  /// True while the owner goes in and out without atomic read-modify-writes.
  bool is_biased() const noexcept {
    return owner_.load(std::memory_order_relaxed) != nullptr && !is_revoked_.load(std::memory_order_relaxed);
  }

 private:
  static const char* this_thread() noexcept {
    static thread_local const char marker = 0;
    return &marker;
  }

  void lock_shared() noexcept;
  void revoke() noexcept;

  std::atomic<const char*> owner_{nullptr};
  std::atomic<bool> is_owner_inside_{false};  // written by the owner only
  std::atomic<bool> is_revoked_{false};
  std::atomic<bool> is_taken_{false};  // by whoever came through lock_shared
};

/// A resource with a lock that what is stacked on it shares. Derived classes implement the do_ functions, which are
/// called with the lock held. A final class whose time counts may override allocate and deallocate by the same words:
/// there the do_ function is no virtual call.
class LockedResource : public Resource {
 public:
  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;  ///< nullptr is allowed and does nothing
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

/// A policy over any resource, which it owns: shares the upstream's lock, or has one of its own where there is none.
class Decorator : public LockedResource {
 public:
  Device device() const noexcept final { return upstream_->device(); }
  /// What it stands on.
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
  LockedResource* locked_;  // the same object, when it shares its lock
};

}  // namespace thimble
