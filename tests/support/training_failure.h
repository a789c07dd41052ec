#pragma once
// A training step of a small run in which every allocation fails once.

#include <cstdint>
#include <cstring>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/policies/fail.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "training_state.h"

namespace training_failure {

/// The faults of the steps in which one allocation failed.
struct StepFailures {
  std::uint64_t requests = 0;  // of one step
  std::size_t failures = 0, untyped = 0, changed = 0, leaks = 0, leftovers = 0, different = 0;
};

inline bool is_clean(const thimble::ThreadContext& now) {
  return now.tape == nullptr && now.transaction == nullptr && !now.is_recomputing && now.path == 0;
}

/// Fails each request of the next step once. Each time it compares the state, retries the step, and restores the run;
/// finally it does the step.
inline StepFailures walk_step(SmallTraining& run, thimble::memory::FailAt& fail, const thimble::memory::Stack& stack) {
  StepFailures walk;
  const TrainingState before = run.state();
  const std::size_t bytes_before = stack.ledger->bytes();
  fail.arm(0);
  double loss = 0;
  {
    const thimble::Tensor result = run.step();
    walk.requests = fail.request_count();
    loss = thimble::item(result);
  }
  const TrainingState after = run.state();
  for (std::uint64_t k = 1; k <= walk.requests; ++k) {
    run.restore(before);
    fail.arm(k);
    try {
      run.step();
    } catch (const thimble::OutOfMemory& error) {
      ++walk.failures;
      if (error.facts().requested_bytes == 0) ++walk.untyped;
    } catch (...) {
      ++walk.untyped;
    }
    if (stack.ledger->bytes() != bytes_before) ++walk.leaks;
    if (run.state() != before) ++walk.changed;
    if (run.has_gradient() || !is_clean(thimble::context())) ++walk.leftovers;
    const double again = thimble::item(run.step());
    if (std::memcmp(&again, &loss, sizeof loss) != 0 || run.state() != after) ++walk.different;
  }
  return walk;
}

inline void check_step(SmallTraining& run, thimble::memory::FailAt& fail, const thimble::memory::Stack& stack) {
  const StepFailures walk = walk_step(run, fail, stack);
  INFO(walk.requests << " requests");
  CHECK(walk.requests > 50);
  CHECK(walk.failures == walk.requests);
  CHECK(walk.untyped == 0);
  CHECK(walk.changed == 0);
  CHECK(walk.leaks == 0);
  CHECK(walk.leftovers == 0);
  CHECK(walk.different == 0);
}

}  // namespace training_failure
