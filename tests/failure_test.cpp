// Every allocation of a training step fails in turn: the error is typed, the step leaves no trace, and tried again it
// gives the bits of a step that never failed.

#include <thimble/memory/fail.h>

#include <string>
#include <vector>

#include <thimble/core/context.h>
#include <thimble/core/error.h>
#include <thimble/memory/stack.h>

#include "catch.h"
#include "training_state.h"

namespace {

using thimble::FailAt;
using thimble::OutOfMemory;
namespace memory = thimble::memory;

/// What was wrong with the steps in which one allocation failed.
struct FailureWalk {
  std::uint64_t requests = 0;  // of one step
  std::size_t failures = 0, untyped = 0, changed = 0, leaks = 0, leftovers = 0, different = 0;
};

bool is_clean(const thimble::Context& now) {
  return now.tape == nullptr && now.transaction == nullptr && !now.is_recomputing && now.path == 0;
}

/// Fails each request of the next step in turn. Every time the state is compared, the step is tried again, and the run
/// is put back to where it was; at last the step is done.
FailureWalk walk_step(SmallTraining& run, FailAt& fail, const memory::Stack& stack) {
  FailureWalk walk;
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
    } catch (const OutOfMemory& error) {
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

}  // namespace

TEST_CASE("failure: one request fails, once", "[failure][memory]") {
  const memory::Stack stack = memory::make_resource(thimble::dry(thimble::cpu));
  const auto fail = std::make_shared<FailAt>(stack.top, 2);
  thimble::Block* const a = fail->allocate({.bytes = 10});
  CHECK_FALSE(fail->has_failed());
  try {
    fail->allocate({.bytes = 20});
    FAIL("request 2 was served");
  } catch (const OutOfMemory& error) {
    CHECK(error.facts().requested_bytes == 20);
    CHECK(std::string(error.what()).find("request 2") != std::string::npos);
  }
  CHECK(fail->has_failed());
  CHECK(stack.ledger->bytes() == 10);
  thimble::Block* const b = fail->allocate({.bytes = 20});
  fail->relabel(b, thimble::Category::input);
  CHECK(stack.ledger->bytes(thimble::Category::input) == 20);
  CHECK(fail->request_count() == 3);
  fail->arm(1);
  CHECK_THROWS_AS(fail->allocate({.bytes = 1}), OutOfMemory);
  fail->arm(0);
  fail->deallocate(fail->allocate({.bytes = 1}), nullptr);
  CHECK_FALSE(fail->has_failed());
  fail->deallocate(a, nullptr);
  fail->deallocate(b, nullptr);
}

TEST_CASE("failure: a training step leaves no trace", "[failure]") {
  using Options = SmallTraining::Options;
  const Options rows[] = {{"char-gpt", "adamw", false, 1},
                          {"char-gpt", "momentum", true, 2},
                          {"resnet18", "momentum", false, 1},
                          {"resnet18", "adamw", true, 2}};
  for (const Options& row : rows) {
    const memory::Stack stack = memory::make_resource(thimble::cpu);
    const auto fail = std::make_shared<FailAt>(stack.top, 0);
    {
      const thimble::ResourceScope scope(fail);
      SmallTraining run(row);
      for (const bool is_first : {true, false}) {  // the first step, and for one model a second
        if (!is_first && &row != rows) continue;
        INFO(row.model << ", " << row.optimizer << (row.recomputes ? ", recomputed, " : ", ") << row.micro_batches
                       << " micro-batches, " << (is_first ? "first step" : "second step"));
        const FailureWalk walk = walk_step(run, *fail, stack);
        INFO(walk.requests << " requests");
        CHECK(walk.requests > 50);
        CHECK(walk.failures == walk.requests);
        CHECK(walk.untyped == 0);
        CHECK(walk.changed == 0);
        CHECK(walk.leaks == 0);
        CHECK(walk.leftovers == 0);
        CHECK(walk.different == 0);
      }
    }
    CHECK(stack.ledger->bytes() == 0);
  }
}

TEST_CASE("failure: making a model and an optimizer", "[failure]") {
  // Whatever request of a construction fails, nothing stays behind, and the next construction gives the same.
  for (const char* model : {"char-gpt", "resnet18"}) {
    INFO(model);
    const memory::Stack stack = memory::make_resource(thimble::cpu);
    const auto fail = std::make_shared<FailAt>(stack.top, 0);
    const thimble::ResourceScope scope(fail);
    const TrainingState expected = SmallTraining({model, "adamw"}).state();
    const std::uint64_t requests = fail->request_count();
    std::size_t failures = 0, leaks = 0;
    for (std::uint64_t k = 1; k <= requests; ++k) {
      fail->arm(k);
      try {
        const SmallTraining run({model, "adamw"});
      } catch (const OutOfMemory&) {
        ++failures;
      }
      leaks += stack.ledger->bytes() == 0 && is_clean(thimble::context()) ? 0 : 1;
    }
    CHECK(failures == requests);
    CHECK(leaks == 0);
    CHECK(SmallTraining({model, "adamw"}).state() == expected);
  }
}
