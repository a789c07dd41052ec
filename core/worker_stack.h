#pragma once
// The stack of each of the team's workers (core/parallel.cpp), which counts among a process's bytes (memory/outside.h).

#include <cstddef>

namespace thimble {

inline constexpr std::size_t worker_stack_bytes = std::size_t{1} << 20;  // kernels need a fraction of it

}  // namespace thimble
