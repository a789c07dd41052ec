#pragma once
// A budget for the whole process, of which an arena gets the bytes that code, heap, threads and files leave.

#include <cstddef>

#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/outside.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// Bytes that `process_budget_bytes` leave for an arena. Throws BudgetError, naming the parts, if the process takes all
/// of them outside of it.
std::size_t arena_budget(std::size_t process_budget_bytes, const memory::OutsideBytes& outside);

/// A BudgetError of an arena's budget, reworded for the process's budget: it names the bytes outside.
BudgetError of_process(const BudgetError& error, std::size_t process_budget_bytes, const memory::OutsideBytes& outside);

/// Finds a plan whose arena and the bytes outside of it are within the budget: `plan` plans for an arena of so many
/// bytes and returns its peak, and `outside` measures the process. Planning leaves bytes on the heap, so a few rounds
/// may be needed. `own_budget_bytes`, unless 0, bounds the arena as well. Returns the bytes outside. Throws
/// BudgetError, and the errors of both functions.
memory::OutsideBytes fit_process(std::size_t process_budget_bytes, std::size_t own_budget_bytes,
                                 FunctionRef<memory::OutsideBytes()> outside,
                                 FunctionRef<std::size_t(std::size_t arena_bytes)> plan);

/// Plans on the cpu in no more bytes than the process may hold, by its budget (0: it has none) and the limits of the
/// host, so that the kernel does not kill it. Throws OutOfMemory that names the bound if `plan` needs more.
void plan_in_bound(std::size_t process_budget_bytes, FunctionRef<void()> plan);

}  // namespace thimble::nn
