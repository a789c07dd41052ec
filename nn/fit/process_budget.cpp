#include <thimble/nn/fit/process_budget.h>

#include <algorithm>
#include <new>

#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>

namespace thimble::nn {

std::size_t arena_budget(std::size_t process_budget_bytes, const memory::OutsideBytes& outside) {
  if (process_budget_bytes > outside.total()) return process_budget_bytes - outside.total();
  throw BudgetError("`process_budget_bytes`: " + memory::exact_bytes(process_budget_bytes) +
                        " leave nothing for an arena: outside of it the process takes " + to_string(outside),
                    process_budget_bytes, outside.total() + 1);
}

BudgetError of_process(const BudgetError& error, std::size_t process_budget_bytes,
                       const memory::OutsideBytes& outside) {
  const std::size_t least = error.minimum_bytes() + outside.total();
  return {"`process_budget_bytes`: " + memory::exact_bytes(process_budget_bytes) + ", of which " + to_string(outside) +
              " are outside of the arena; in all at least " + memory::exact_bytes(least) +
              " are needed: " + error.what(),
          process_budget_bytes, least};
}

memory::OutsideBytes fit_process(std::size_t process_budget_bytes, std::size_t own_budget_bytes,
                                 FunctionRef<memory::OutsideBytes()> outside,
                                 FunctionRef<std::size_t(std::size_t arena_bytes)> plan) {
  constexpr int max_rounds = 4;
  std::size_t peak = 0;
  memory::OutsideBytes now = outside();
  for (int round = 0; round < max_rounds; ++round) {
    const std::size_t left = arena_budget(process_budget_bytes, now);
    try {
      peak = plan(own_budget_bytes > 0 ? std::min(own_budget_bytes, left) : left);
    } catch (const BudgetError& error) {
      throw of_process(error, process_budget_bytes, now);
    }
    now = outside();
    if (peak + now.total() <= process_budget_bytes) return now;
  }
  throw of_process(BudgetError("planning itself leaves too much on the heap", process_budget_bytes, peak),
                   process_budget_bytes, now);
}

namespace {

[[noreturn]] void refuse_budget(std::size_t budget, std::size_t room) {
  throw OutOfMemory("planning: it needs more than its bound of " + memory::exact_bytes(room) +
                        (budget > 0 ? ", which `process_budget_bytes` " + memory::exact_bytes(budget) +
                                          " or a limit of the machine leaves beside code"
                                    : ", which a limit of the machine leaves") +
                        "; a plan that was made elsewhere (`plan --save`) is followed in less (`plan`)",
                    {.requested_bytes = room + 1, .capacity_bytes = room});
}

}  // namespace

void plan_in_bound(std::size_t process_budget_bytes, FunctionRef<void()> plan) {
  const std::size_t room = memory::heap_room(), code = process::file_mapped_bytes();
  const std::size_t left = process_budget_bytes - std::min(process_budget_bytes, code);
  const memory::HeapBound bound(process_budget_bytes > 0 ? std::min(room, left) : room);
  try {
    plan();
  } catch (const std::bad_alloc&) {
    refuse_budget(process_budget_bytes, bound.bytes());
  } catch (const OutOfMemory&) {
    refuse_budget(process_budget_bytes, bound.bytes());
  }
}

}  // namespace thimble::nn
