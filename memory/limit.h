#pragma once
// A limit on live bytes.
//
// Policy
// - A request that would bring the live requested bytes above the limit is refused with OutOfMemory; nothing has
//   changed, upstream has not been asked.
// - It stands below the ledger, so that the refusal carries the table of categories.
//
// Terms
//   limit   largest sum of live requested bytes; what the arena rounds up or loses to holes does not count

#include <cstddef>
#include <memory>

#include <thimble/memory/lock.h>

namespace thimble {

class Limit final : public LockedResource {
 public:
  Limit(std::shared_ptr<Resource> upstream, std::size_t limit_bytes);

  /// Throws OutOfMemory when the limit would be exceeded, and what upstream throws.
  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;
  void relabel(Block* block, Category category) noexcept override { upstream_->relabel(block, category); }
  Device device() const noexcept override { return upstream_->device(); }

  std::size_t limit_bytes() const noexcept { return limit_bytes_; }
  std::size_t live_bytes() const;

 private:
  std::shared_ptr<Resource> upstream_;
  std::size_t limit_bytes_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace thimble
