#pragma once
// Planning in bounded memory: requests beyond the limits of the host get std::bad_alloc, where the kernel would end the
// process.

#include <cstddef>
#include <vector>

#include <thimble/memory/process/host_limits.h>

namespace thimble::memory {

/// Private writable bytes that planning may hold in this process, by the smallest of the limits. Code counts by half:
/// the kernel drops the rest and reads it again.
std::size_t heap_room(const std::vector<HostLimit>& limits = host_limits());

/// For a scope limits this process to so many private writable bytes (RLIMIT_DATA), or fewer if it was limited to fewer
/// already. A setting of the process, not of a thread. With a sanitizer, whose shadow exceeds any bound, there is none.
class HeapBound {
 public:
  explicit HeapBound(std::size_t bytes) noexcept;
  ~HeapBound();
  HeapBound(const HeapBound&) = delete;
  HeapBound& operator=(const HeapBound&) = delete;

  /// The bound in force.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::size_t bytes_, before_;
};

}  // namespace thimble::memory
