#include <thimble/memory/policies/fail.h>

#include <mutex>
#include <string>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::memory {

Block* FailAt::do_allocate(const Request& request) {
  if (++count_ == k_) {
    throw OutOfMemory("out of memory on " + to_string(device()) + ": requested " + exact_bytes(request.bytes) + " as " +
                          std::string(to_string(request.category)) + ": request " + std::to_string(k_) +
                          " was told to fail",
                      {.requested_bytes = request.bytes});
  }
  return upstream_allocate(request);
}

void FailAt::arm(std::uint64_t k) {
  const std::lock_guard guard(*lock());
  k_ = k;
  count_ = 0;
}

std::uint64_t FailAt::request_count() const {
  const std::lock_guard guard(*lock());
  return count_;
}

bool FailAt::has_failed() const {
  const std::lock_guard guard(*lock());
  return k_ != 0 && count_ >= k_;
}

}  // namespace thimble::memory
