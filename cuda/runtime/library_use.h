#pragma once
// Counts library calls and refusals, where the rules of core/kernels/cuda_workspace.h leave the choice to a library.
// After a refusal the project's kernel computes the result: no failure, but slower, so it is counted.

#include <mutex>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/cuda/runtime/call_text.h>

namespace thimble::gpu {

struct LibraryBooks {
  std::mutex mutex;
  kernels::LibraryUse use;
};
inline LibraryBooks library_books;

inline kernels::LibraryUse library_use() {
  const std::lock_guard guard(library_books.mutex);
  return library_books.use;
}

/// Books a call of `library` (a member of LibraryUse) for `args`; returns `is_done`.
template <class Args>
bool booked(kernels::LibraryCounts kernels::LibraryUse::*library, const Args& args, bool is_done) {
  const std::lock_guard guard(library_books.mutex);
  kernels::LibraryCounts& counts = library_books.use.*library;
  if (is_done) {
    ++counts.calls;
  } else if (counts.refusals++ == 0) {
    counts.first_refused = describe(args);
  }
  return is_done;
}

}  // namespace thimble::gpu
