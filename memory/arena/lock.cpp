#include <thimble/memory/arena/lock.h>

#include <thread>

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace thimble {
namespace lock_detail {

/// Whether this process may force a barrier on its threads; asked once.
bool can_force_barrier() noexcept {
#if defined(__linux__)
  static const bool is_registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  return is_registered;
#else
  return false;
#endif
}

void force_barrier() noexcept {
#if defined(__linux__)
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);  // cannot fail once registered
#endif
}

class Wait {
 public:
  void operator()() noexcept {
    if (++spins_ > 64) std::this_thread::yield();
  }

 private:
  int spins_ = 0;
};

std::shared_ptr<ResourceLock> lock_of(const Resource& resource) {
  const auto* locked = dynamic_cast<const LockedResource*>(&resource);
  return locked != nullptr ? locked->lock() : std::make_shared<ResourceLock>();
}

}  // namespace lock_detail

void ResourceLock::lock_shared() noexcept {
  lock_detail::Wait wait;
  while (is_taken_.load(std::memory_order_relaxed) || is_taken_.exchange(true, std::memory_order_acquire)) wait();
  if (is_revoked_.load(std::memory_order_relaxed)) return;
  if (owner_.load(std::memory_order_relaxed) != nullptr) {
    revoke();
  } else if (lock_detail::can_force_barrier()) {
    owner_.store(this_thread(), std::memory_order_relaxed);
  } else {
    is_revoked_.store(true, std::memory_order_relaxed);
  }
}

/// Called with is_taken_ held, by a thread that is not the owner.
void ResourceLock::revoke() noexcept {
  is_revoked_.store(true, std::memory_order_relaxed);
  lock_detail::force_barrier();
  lock_detail::Wait wait;
  while (is_owner_inside_.load(std::memory_order_acquire)) wait();
}

Block* LockedResource::allocate(const Request& request) {
  const ResourceLock::Hold hold(*lock_);
  return do_allocate(request);
}

void LockedResource::deallocate(Block* block, Stream stream) noexcept {
  if (block == nullptr) return;
  const ResourceLock::Hold hold(*lock_);
  do_deallocate(block, stream);
}

void LockedResource::relabel(Block* block, Category category) noexcept {
  const ResourceLock::Hold hold(*lock_);
  do_relabel(block, category);
}

Decorator::Decorator(std::shared_ptr<Resource> upstream)
    : LockedResource(lock_detail::lock_of(*upstream)),
      upstream_(std::move(upstream)),
      locked_(dynamic_cast<LockedResource*>(upstream_.get())) {}

}  // namespace thimble
