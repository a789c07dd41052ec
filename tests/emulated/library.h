#pragma once
// What the emulated device has of the libraries: nothing, unless a test asks for plain loops in their place, for what
// is done before and after their calls.

namespace thimble::emulated {

/// Products. No effect on a GPU.
inline bool has_library = false;

struct LibraryScope {
  LibraryScope() { has_library = true; }
  ~LibraryScope() { has_library = false; }
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

}  // namespace thimble::emulated
