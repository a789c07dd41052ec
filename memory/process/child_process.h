#pragma once
// Runs work in a copy of this process, so that its heap goes with it.

#include <optional>
#include <string>

#include <thimble/core/threads/parallel.h>

namespace thimble::memory {

/// Forks, runs `work` in the child and returns its result. nullopt when the work threw, the child ended in another way,
/// or fork failed: the caller then does the work itself and gets its error. `signal`, if any, is set to the one that
/// ended the child, or 0. The child has only this thread. Not for processes with a GPU in use.
std::optional<std::string> in_child_process(FunctionRef<std::string()> work, int* signal = nullptr);

}  // namespace thimble::memory
