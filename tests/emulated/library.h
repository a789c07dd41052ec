#pragma once
// What the emulated device has of the libraries: nothing, unless a test asks for plain loops in their place, for what
// is done before and after their calls. And what it says that it can compute.

#include <atomic>
#include <cstddef>
#include <limits>

namespace thimble::emulated {

/// Products. No effect on a GPU.
inline bool has_library = false;

struct LibraryScope {
  LibraryScope() { has_library = true; }
  ~LibraryScope() { has_library = false; }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

/// Products of FP8 codes with scales of blocks that it has made.
inline int block_products = 0;

/// What the emulated device says of itself (core/launch/compute_capability.h). No effect on a GPU.
inline int capability = 90;

struct CapabilityScope {
  explicit CapabilityScope(int value) : before(capability) { capability = value; }
  ~CapabilityScope() { capability = before; }
  CapabilityScope(const CapabilityScope&) = delete;
  CapabilityScope& operator=(const CapabilityScope&) = delete;
  int before;
};

// What the emulated device's host has of pinned memory: no bound unless a test sets one.

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
