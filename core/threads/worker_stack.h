#pragma once
// The stack of each worker (core/threads/parallel.cpp), which counts among a process's bytes
// (memory/process/outside.h).

#include <cstddef>

namespace thimble {

inline constexpr std::size_t worker_stack_bytes = std::size_t{512} << 10;  // the largest frame of a kernel: 140 KiB

}  // namespace thimble
