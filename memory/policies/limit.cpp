#include <thimble/memory/policies/limit.h>

#include <algorithm>
#include <mutex>
#include <string>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace thimble::memory {

Limit::Limit(std::shared_ptr<Resource> upstream, std::size_t limit_bytes)
    : Decorator(std::move(upstream)), limit_bytes_(limit_bytes) {}

Block* Limit::do_allocate(const Request& request) {
  const std::size_t left = limit_bytes_ - live_bytes_;
  if (request.bytes > left) {
    throw OutOfMemory("out of memory on " + to_string(device()) + ": requested " + exact_bytes(request.bytes) + " as " +
                          std::string(to_string(request.category)) + ": above the limit of " +
                          exact_bytes(limit_bytes_) + "; in use " + exact_bytes(live_bytes_) + ", peak " +
                          exact_bytes(peak_bytes_) + ", left " + exact_bytes(left),
                      {.requested_bytes = request.bytes,
                       .in_use_bytes = live_bytes_,
                       .peak_bytes = peak_bytes_,
                       .capacity_bytes = limit_bytes_,
                       .largest_free_bytes = left});
  }
  Block* const block = upstream_allocate(request);
  live_bytes_ += request.bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return block;
}

void Limit::do_deallocate(Block* block, Stream stream) noexcept {
  live_bytes_ -= block->bytes;
  upstream_deallocate(block, stream);
}

std::size_t Limit::live_bytes() const {
  const std::lock_guard guard(*lock());
  return live_bytes_;
}

}  // namespace thimble::memory
