#pragma once
// What the emulated device's host has of pinned memory: no bound unless a test sets one.

#include <atomic>
#include <cstddef>
#include <limits>

namespace thimble::emulated {

inline constexpr std::size_t unbounded = std::numeric_limits<std::size_t>::max();

/// The largest block that is given. No effect on a GPU.
inline std::atomic<std::size_t> largest_pinned_block{unbounded};

struct PinnedBound {
  explicit PinnedBound(std::size_t bytes) { largest_pinned_block = bytes; }
  ~PinnedBound() { largest_pinned_block = unbounded; }
  PinnedBound(const PinnedBound&) = delete;
  PinnedBound& operator=(const PinnedBound&) = delete;
};

}  // namespace thimble::emulated
