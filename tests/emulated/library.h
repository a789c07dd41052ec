#pragma once
// The emulated device's libraries: absent, unless a test asks for plain loops in order to test the work before and
// after their calls. And its compute capability.

#include <atomic>
#include <cstddef>
#include <limits>

namespace thimble::emulated {

/// Whether the library makes products. No effect on a GPU.
inline bool has_library = false;

struct LibraryScope {
  LibraryScope() { has_library = true; }
  ~LibraryScope() { has_library = false; }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

/// Number of its FP8 products with block scales.
inline int block_products = 0;

/// The emulated device's compute capability (core/launch/compute_capability.h). No effect on a GPU.
inline int capability = 90;

struct CapabilityScope {
  explicit CapabilityScope(int value) : before(capability) { capability = value; }
  ~CapabilityScope() { capability = before; }
  CapabilityScope(const CapabilityScope&) = delete;
  CapabilityScope& operator=(const CapabilityScope&) = delete;
  int before;
};

// Pinned memory of the emulated device's host: unbounded unless a test sets a bound.

inline constexpr std::size_t unbounded = std::numeric_limits<std::size_t>::max();

/// The largest block that can be allocated. No effect on a GPU.
inline std::atomic<std::size_t> largest_pinned_block{unbounded};

struct PinnedBound {
  explicit PinnedBound(std::size_t bytes) { largest_pinned_block = bytes; }
  ~PinnedBound() { largest_pinned_block = unbounded; }
  PinnedBound(const PinnedBound&) = delete;
  PinnedBound& operator=(const PinnedBound&) = delete;
};

}  // namespace thimble::emulated
