#pragma once
// Failure injection: one request is refused as if memory had run out.
//
// Policy
// - Exactly one request fails, once; a retry succeeds. So a test can fail each request of a step, and compare the
//   retried step with one that never failed.
// - The request fails before upstream sees it.
//
// Terms
//   k   number of the failing request, from 1 since construction or arm(); with 0 none fails

#include <cstdint>
#include <memory>

#include <thimble/memory/arena/lock.h>

namespace thimble::memory {

class FailAt final : public Decorator {
 public:
  FailAt(std::shared_ptr<Resource> upstream, std::uint64_t k) : Decorator(std::move(upstream)), k_(k) {}

  /// Restarts the count; the k-th request from now fails.
  void arm(std::uint64_t k);

  /// Requests since construction or arm(), including the failed one.
  std::uint64_t request_count() const;
  bool has_failed() const;

 private:
  /// Throws OutOfMemory at the k-th request, and as upstream does.
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override { upstream_deallocate(block, stream); }
  void do_relabel(Block* block, Category category) noexcept override { upstream_relabel(block, category); }

  std::uint64_t k_;
  std::uint64_t count_ = 0;
};

}  // namespace thimble::memory
