#include <thimble/nn/fit/process_budget.h>

#include <algorithm>
#include <string>

#include <thimble/memory/bytes.h>

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

}  // namespace thimble::nn
