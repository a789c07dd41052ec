// Every allocation of a training step fails once: the error is typed, the step leaves no trace, and a retry gives the
// bits of a step that never failed.

#include <thimble/memory/policies/fail.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/training_failure.h"

namespace {

using thimble::OutOfMemory;
using thimble::memory::FailAt;
using training_failure::check_step;
using training_failure::is_clean;
namespace memory = thimble::memory;

}  // namespace

TEST_CASE("failure: one request fails, once", "[failure][memory]") {
  const memory::Stack stack = memory::make_resource(thimble::dry(thimble::cpu));
  const auto fail = std::make_shared<FailAt>(stack.top, 2);
  thimble::memory::Block* const a = fail->allocate({.bytes = 10});
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
  thimble::memory::Block* const b = fail->allocate({.bytes = 20});
  fail->relabel(b, thimble::memory::Category::input);
  CHECK(stack.ledger->bytes(thimble::memory::Category::input) == 20);
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
      for (const bool is_first : {true, false}) {  // the first step and, for one model, a second
        if (!is_first && &row != rows) continue;
        INFO(row.model << ", " << row.optimizer << (row.recomputes ? ", recomputed, " : ", ") << row.micro_batches
                       << " micro-batches, " << (is_first ? "first step" : "second step"));
        check_step(run, *fail, stack);
      }
    }
    CHECK(stack.ledger->bytes() == 0);
  }
}

TEST_CASE("failure: making a model and an optimizer", "[failure]") {
  // Whichever request of a construction fails, nothing stays behind, and the next construction matches.
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
