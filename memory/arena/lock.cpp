#include <thimble/memory/arena/lock.h>

#include <mutex>
#include <thread>

namespace thimble::memory {
namespace {

std::shared_ptr<ResourceLock> lock_of(const Resource& resource) {
  const auto* locked = dynamic_cast<const LockedResource*>(&resource);
  return locked != nullptr ? locked->lock() : std::make_shared<ResourceLock>();
}

}  // namespace

void ResourceLock::wait() const noexcept {
  for (int spins = 0; is_taken_.load(std::memory_order_relaxed); ++spins) {
    if (spins > 64) std::this_thread::yield();
  }
}

Block* LockedResource::allocate(const Request& request) {
  const std::lock_guard hold(*lock_);
  return do_allocate(request);
}

void LockedResource::deallocate(Block* block, Stream stream) noexcept {
  if (block == nullptr) return;
  const std::lock_guard hold(*lock_);
  do_deallocate(block, stream);
}

void LockedResource::relabel(Block* block, Category category) noexcept {
  const std::lock_guard hold(*lock_);
  do_relabel(block, category);
}

Decorator::Decorator(std::shared_ptr<Resource> upstream)
    : LockedResource(lock_of(*upstream)),
      upstream_(std::move(upstream)),
      locked_(dynamic_cast<LockedResource*>(upstream_.get())) {}

}  // namespace thimble::memory
