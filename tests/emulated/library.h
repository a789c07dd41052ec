#pragma once
// What the emulated device has of the libraries: nothing, unless a test asks for plain loops in their place, for what
// is done before and after their calls. And what it says that it can compute.

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

}  // namespace thimble::emulated
