#pragma once
// Work in a copy of this process, so that nothing of what it takes from the heap stays.

#include <optional>
#include <string>

#include <thimble/core/threads/parallel.h>

namespace thimble::memory {

/// Forks, runs `work` in the child and returns its result. None where it threw, or the child ended in another way, or
/// there is none to be had: the caller then does the work itself, and has its error.
/// The child has this thread alone. Not for processes with a GPU in use.
std::optional<std::string> in_child_process(FunctionRef<std::string()> work);

}  // namespace thimble::memory
