// The placed arena replays steps at their planned offsets; unplanned requests go to the arena.

#include <thimble/memory/policies/placed.h>

#include <functional>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/stack.h>

#include "placed_actor.h"
#include "support/catch.h"

namespace {

using namespace thimble;
using namespace placed_test;

}  // namespace

TEST_CASE("placed: a plan is what a step allocates and frees", "[placed]") {
  memory::Options options;
  options.trace = true;
  const memory::Stack stack = memory::make_resource(cpu, options);
  Actor actor(*stack.top);
  actor.play({{'x', 64}, {'y', 640}});
  const std::size_t begin = stack.trace->event_count();
  actor.play({{'a', 100}, {'x', 0}, {'b', 200}, {'c', 300}});
  stack.top->relabel(actor.block('b'), memory::Category::activation);
  actor.play({{'a', 0}, {'z', 50}, {'c', 0}});
  const std::vector<memory::Trace::Event> events = stack.trace->events();
  const memory::StepPlacement plan = memory::make_step_placement(std::span(events).subspan(begin));
  constexpr std::uint32_t no = memory::StepPlacement::not_placed;
  CHECK(plan.events == std::vector<memory::StepPlacement::Event>{
                           {100, 64, 0}, {200, 64, no}, {300, 64, 1}, {0, 0, 0}, {50, 64, no}, {0, 0, 1}});
  CHECK(plan.buffers == std::vector<memory::Buffer>{{0, 0, 3, 100, 64}, {1, 2, 5, 300, 64}});
  CHECK(plan.placement.height == 128 + 320);
  CHECK(memory::make_step_placement({}).placement.height == 0);

  std::vector<memory::Trace::Event> twice = {events[begin], events[begin]};
  CHECK_THROWS_AS(memory::make_step_placement(twice), ValueError);
  twice = {events[begin], events[begin + 5], events[begin + 5]};
  CHECK_THROWS_AS(memory::make_step_placement(twice), ValueError);
}

TEST_CASE("placed: a step that places the same blocks is not searched again", "[placed]") {
  const auto events_of = [](const Script& script) {
    memory::Options options;
    options.trace = true;
    const memory::Stack stack = memory::make_resource(cpu, options);
    Actor actor(*stack.top);
    actor.play(script);
    return stack.trace->events();
  };
  const Script steady = {{'a', 1000}, {'b', 5000}, {'a', 0}, {'c', 300}, {'b', 0}, {'c', 0}};
  Script first = steady;  // also allocates a block that stays
  first.insert(first.begin() + 3, {'z', 4096});
  const memory::StepPlacement like = memory::make_step_placement(events_of(first));
  memory::StepPlacement told = like;
  told.placement.height += 64;  // marks a placement that is reused
  CHECK(memory::make_step_placement(events_of(steady), {}, &told).placement.height == like.placement.height + 64);
  CHECK(memory::make_step_placement(events_of(steady), {}, &told).placement.offsets == like.placement.offsets);
  CHECK(memory::make_step_placement(events_of(steady)).placement.offsets == like.placement.offsets);
  Script other = steady;
  std::swap(other[4], other[5]);  // another order of frees
  CHECK(memory::make_step_placement(events_of(other), {}, &told).placement.height == like.placement.height);
  other = steady;
  other[3].bytes = 301;
  CHECK(memory::make_step_placement(events_of(other), {}, &told).placement.height == like.placement.height);
  other = steady;
  other.insert(other.end(), {{'d', 8}, {'d', 0}});  // more than was placed
  CHECK(memory::make_step_placement(events_of(other), {}, &told).placement.height == like.placement.height);
  std::vector<memory::Trace::Event> aligned = events_of(steady);
  aligned[0].alignment = 128;
  CHECK(memory::make_step_placement(aligned, {}, &told).placement.height < told.placement.height);
}

TEST_CASE("placed: steps are replayed at the planned offsets", "[placed]") {
  const memory::StepPlacement plan = plan_of(step_script);
  CHECK(plan.placement.height == plan.placement.load);
  const memory::Stack stack = stack_of({plan});
  REQUIRE(stack.placed != nullptr);
  CHECK(stack.placed->lock() == stack.arena->lock());
  Actor actor(*stack.top);
  actor.allocate('p', 100);
  std::vector<std::pair<const memory::Block*, std::byte*>> first;
  for (int step = 0; step < 3; ++step) {
    const memory::PlacedArena::Step scope(*stack.placed);
    actor.check_all();
    std::vector<std::pair<const memory::Block*, std::byte*>> seen;
    std::size_t block = 0;
    for (const Line& line : step_script) {
      if (line.bytes == 0) {
        actor.free(line.name);
        continue;
      }
      const memory::Block* const now = actor.allocate(line.name, line.bytes);
      CHECK(lies_in_region(stack, now));
      seen.emplace_back(now, now->address);
      CHECK(now->address - seen.front().second == static_cast<std::ptrdiff_t>(plan.placement.offsets[block++]) -
                                                      static_cast<std::ptrdiff_t>(plan.placement.offsets[0]));
    }
    if (step == 0) first = seen;
    CHECK(seen == first);  // handles and addresses repeat
  }
  memory::PlacedArena::Statistics expected;
  expected.steps = 3;
  expected.region_bytes = plan.placement.height;
  expected.is_region_held = true;
  CHECK(stack.placed->statistics() == expected);
  CHECK(stack.arena->statistics().peak_height_bytes == 128 + plan.placement.height);
  CHECK(stack.arena->statistics().allocation_count == 2);  // 'p' and the region
  CHECK(stack.ledger->max_allocated() == 100 + 6200);      // the ledger sees the blocks
}

TEST_CASE("placed: plans follow each other, the last repeats", "[placed]") {
  const Script first_script = {{'a', 4096}, {'b', 64}, {'a', 0}, {'b', 0}};
  const memory::Stack stack = stack_of({plan_of(first_script), plan_of(step_script)});
  Actor actor(*stack.top);
  for (const Script& script : {first_script, step_script, step_script}) {
    const memory::PlacedArena::Step scope(*stack.placed);
    actor.play(script);
  }
  CHECK(stack.placed->statistics().deviations == 0);
  stack.placed->begin_step(0);  // by its index
  actor.play(first_script);
  stack.placed->begin_step(7);  // ends the previous step; an index beyond the plans uses the last plan
  actor.play(step_script);
  stack.placed->end_step();
  stack.placed->end_step();  // nothing to end
  CHECK(stack.placed->statistics().deviations == 0);
  CHECK(stack.placed->statistics().steps == 5);
  CHECK(stack.arena->statistics().allocation_count == 1);
}

TEST_CASE("placed: every kind of deviation is counted once and goes to the arena", "[placed]") {
  struct Case {
    const char* what;
    Script script;
    std::size_t index;   // index of the deviating event
    std::size_t placed;  // allocations before it
  };
  const std::vector<Case> cases = {
      {"other bytes", {{'a', 1000}, {'b', 5001}, {'a', 0}, {'b', 0}}, 1, 1},
      {"one more", {{'a', 1000}, {'b', 5000}, {'e', 8}, {'a', 0}, {'b', 0}, {'e', 0}}, 2, 2},
      {"other order of frees", {{'a', 1000}, {'b', 5000}, {'b', 0}, {'c', 300}, {'a', 0}, {'c', 0}}, 2, 2},
      {"freed early", {{'a', 1000}, {'a', 0}, {'b', 5000}, {'b', 0}}, 1, 1},
      {"ends early", {{'a', 1000}, {'b', 5000}, {'a', 0}, {'b', 0}}, 3, 2},
      {"nothing at all", {}, 0, 0},
      {"goes on",
       [] {
         Script longer = step_script;
         longer.insert(longer.end(), {{'e', 77}, {'e', 0}});
         return longer;
       }(),
       8, 4}};
  for (const Case& c : cases) {
    INFO(c.what);
    const memory::Stack stack = stack_of({plan_of(step_script)});
    Actor actor(*stack.top);
    for (int step = 0; step < 4; ++step) {
      const memory::PlacedArena::Step scope(*stack.placed);
      const bool is_odd = step % 2 == 1;
      std::size_t allocation = 0;
      for (const Line& line : is_odd ? c.script : step_script) {
        if (line.bytes == 0) {
          actor.free(line.name);
          continue;
        }
        const bool is_placed = lies_in_region(stack, actor.allocate(line.name, line.bytes));
        CHECK(is_placed == (!is_odd || allocation < c.placed));
        ++allocation;
        actor.check_all();
      }
    }
    const memory::PlacedArena::Statistics statistics = stack.placed->statistics();
    CHECK(statistics.deviations == 2);
    CHECK(statistics.last_deviation == c.index);
    CHECK(statistics.dynamic_steps == 0);
    CHECK(statistics.live_blocks == 0);
  }
}

TEST_CASE("placed: alignment is compared, outside of steps nothing is placed", "[placed]") {
  const memory::Stack stack = stack_of({plan_of(step_script)});
  Actor actor(*stack.top);
  CHECK_FALSE(lies_in_region(stack, actor.allocate('a', 1000)));
  actor.free('a');
  CHECK_FALSE(stack.placed->statistics().is_region_held);
  stack.placed->begin_step();
  CHECK_FALSE(lies_in_region(stack, actor.allocate('a', 1000, 128)));
  CHECK(stack.placed->statistics().deviations == 1);
  actor.free('a');
  stack.placed->begin_step();
  CHECK_THROWS_AS(stack.top->allocate({.bytes = 0, .alignment = 0}), ValueError);
}

TEST_CASE("placed: the region is aligned as its most aligned block", "[placed]") {
  memory::Options options;
  options.trace = true;
  memory::StepPlacement plan;
  {
    const memory::Stack stack = memory::make_resource(cpu, options);
    Actor actor(*stack.top);
    actor.allocate('a', 1000, 4096);
    actor.allocate('b', 1000, 64);
    actor.free('a');
    actor.free('b');
    plan = memory::make_step_placement(stack.trace->events());
  }
  const memory::Stack stack = stack_of({plan});
  Actor actor(*stack.top);
  actor.allocate('p', 100);  // keeps the region from the arena's start
  const memory::PlacedArena::Step step(*stack.placed);
  CHECK(lies_in_region(stack, actor.allocate('a', 1000, 4096)));  // allocate() checks the address
  CHECK(lies_in_region(stack, actor.allocate('b', 1000, 64)));
  actor.free('a');
  actor.free('b');
}

TEST_CASE("placed: a block that outlives its step makes the next one dynamic", "[placed]") {
  const memory::Stack stack = stack_of({plan_of(step_script)});
  Actor actor(*stack.top);
  stack.placed->begin_step();
  actor.allocate('a', 1000);
  stack.placed->end_step();
  CHECK(stack.placed->statistics().deviations == 1);
  CHECK(stack.placed->release_region() == 0);  // a block still lives in it
  stack.placed->begin_step();
  CHECK_FALSE(lies_in_region(stack, actor.allocate('b', 1000)));
  actor.check_all();
  actor.free('a');
  CHECK_FALSE(lies_in_region(stack, actor.allocate('c', 1000)));
  stack.placed->end_step();
  CHECK(stack.placed->statistics().dynamic_steps == 1);
  CHECK(stack.placed->statistics().deviations == 1);
  stack.placed->begin_step();  // 'b' and 'c' are in the arena, so the region is empty
  CHECK(lies_in_region(stack, actor.allocate('a', 1000)));
  stack.placed->end_step();
  CHECK(stack.placed->statistics().dynamic_steps == 1);
}

TEST_CASE("placed: plans that do not hold together are refused", "[placed]") {
  const memory::StepPlacement good = plan_of(step_script);
  const auto with = [&](const std::function<void(memory::StepPlacement&)>& change) {
    memory::StepPlacement plan = good;
    change(plan);
    return [plan] { stack_of({plan}); };
  };
  CHECK_THROWS_AS(memory::PlacedArena(std::make_shared<memory::Arena>(memory::make_cpu_backing()), {}), ValueError);
  CHECK_NOTHROW(with([](memory::StepPlacement&) {})());
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.placement.offsets[1] = p.placement.offsets[0]; })(), PlanError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.placement.height -= 64; })(), PlanError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.placement.offsets.pop_back(); })(), ValueError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.events.pop_back(); })(), ValueError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.events[0].block = 99; })(), ValueError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.events[0].bytes = 1; })(), ValueError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { p.events[2].block = memory::StepPlacement::not_placed; })(),
                  ValueError);
  CHECK_THROWS_AS(with([](memory::StepPlacement& p) { std::swap(p.events[0], p.events[1]); })(), ValueError);
}
