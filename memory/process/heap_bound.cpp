#include <thimble/memory/process/heap_bound.h>

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include <thimble/memory/process/process.h>

namespace thimble::memory {
namespace heap_bound_detail {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();
/// A sanitizer's shadow is private and writable, and larger than any memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_bounded = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool is_bounded = false;
#else
constexpr bool is_bounded = true;
#endif
#else
constexpr bool is_bounded = true;
#endif
/// Page tables, the kernel's stacks, pages that it counts late.
constexpr std::size_t kernel_bytes = std::size_t{1} << 20;

std::size_t soft_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  return static_cast<std::size_t>(limit.rlim_cur);
}

void set_soft_limit(std::size_t bytes) noexcept {
  rlimit limit{};
  if (!is_bounded || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = bytes == unlimited ? RLIM_INFINITY : static_cast<rlim_t>(bytes);
  setrlimit(RLIMIT_DATA, &limit);
}

}  // namespace heap_bound_detail

std::size_t heap_room(const std::vector<HostLimit>& limits) {
  std::size_t most = heap_bound_detail::unlimited;
  for (const HostLimit& limit : limits) most = std::min(most, limit.most_bytes);
  if (most == heap_bound_detail::unlimited) return most;
  const std::size_t others = process::file_mapped_bytes() / 2 + heap_bound_detail::kernel_bytes;
  return most - std::min(most, others);
}

HeapBound::HeapBound(std::size_t bytes) noexcept
    : bytes_(std::min(bytes, heap_bound_detail::soft_limit())), before_(heap_bound_detail::soft_limit()) {
  if (bytes_ < before_) heap_bound_detail::set_soft_limit(bytes_);
}

HeapBound::~HeapBound() {
  if (bytes_ < before_) heap_bound_detail::set_soft_limit(before_);
}

}  // namespace thimble::memory
