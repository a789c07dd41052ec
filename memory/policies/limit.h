#pragma once
// A limit on live bytes.
//
// Policy
// - A request that would take the live requested bytes above the limit throws OutOfMemory without a call of upstream.
// - It is below the ledger, so that the refusal carries the table of categories.
//
// Terms
//   limit   most live requested bytes; the arena's rounding and holes do not count

#include <cstddef>
#include <memory>

#include <thimble/memory/arena/lock.h>

namespace thimble::memory {

/// allocate throws OutOfMemory when the limit would be exceeded, and as upstream does.
class Limit final : public Decorator {
 public:
  Limit(std::shared_ptr<Resource> upstream, std::size_t limit_bytes);

  std::size_t limit_bytes() const noexcept { return limit_bytes_; }
  std::size_t live_bytes() const;

 private:
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override { upstream_relabel(block, category); }

  std::size_t limit_bytes_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace thimble::memory
