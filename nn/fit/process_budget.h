#pragma once
// Divides a budget for the whole process: the arena gets the bytes that code, heap, threads and files leave.

#include <cstddef>

#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/outside.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Bytes that `process_budget_bytes` leave for an arena. Throws BudgetError, naming the parts, if the process needs all
/// of them outside the arena.
std::size_t arena_budget(std::size_t process_budget_bytes, const memory::OutsideBytes& outside);

/// Rewords the BudgetError of an arena for the process's budget, and names the bytes outside.
BudgetError of_process(const BudgetError& error, std::size_t process_budget_bytes, const memory::OutsideBytes& outside);

/// Finds a plan whose arena and bytes outside fit the budget: `plan` plans for an arena of the given bytes and returns
/// its peak; `outside` measures the process. Planning leaves bytes on the heap, so this may take a few rounds.
/// `own_budget_bytes`, unless 0, also bounds the arena. Returns the bytes outside. Throws BudgetError, and the errors
/// of both functions.
memory::OutsideBytes fit_process(std::size_t process_budget_bytes, std::size_t own_budget_bytes,
                                 FunctionRef<memory::OutsideBytes()> outside,
                                 FunctionRef<std::size_t(std::size_t arena_bytes)> plan);

/// Plans on the cpu within the bytes that the process may hold, by its budget (0 for none) and the host's limits, so
/// that the kernel does not kill it. Throws OutOfMemory, naming the bound, if `plan` needs more.
void plan_in_bound(std::size_t process_budget_bytes, FunctionRef<void()> plan);

}  // namespace thimble::nn
