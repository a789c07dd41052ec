#include <thimble/memory/policies/trace.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/arena/arena.h>

#include "support/catch.h"

namespace {

using thimble::memory::Arena;
using thimble::memory::Block;
using thimble::memory::Category;
using thimble::memory::Trace;
using Action = thimble::memory::Trace::Action;

std::shared_ptr<Trace> trace_on(thimble::memory::Device device, std::size_t capacity_bytes = 0) {
  return std::make_shared<Trace>(
      std::make_shared<Arena>(thimble::memory::make_backing(device), Arena::Options{.capacity_bytes = capacity_bytes}));
}

/// A fixed little program: two blocks, a relabel, a refusal, frees in the other order.
void trace_program(Trace& trace, std::size_t bytes_of_second) {
  Block* const a = trace.allocate({.bytes = 100, .category = Category::parameter});
  Block* const b = trace.allocate({.bytes = bytes_of_second, .alignment = 256});
  trace.relabel(b, Category::activation);
  CHECK_THROWS_AS(trace.allocate({.bytes = 1 << 30}), thimble::OutOfMemory);
  trace.deallocate(a, nullptr);
  Block* const c = trace.allocate({.bytes = 50, .category = Category::gradient});
  trace.deallocate(b, nullptr);
  trace.deallocate(c, nullptr);
  trace.deallocate(nullptr, nullptr);
}

}  // namespace

TEST_CASE("memory trace: records every event that succeeded, in order", "[memory][trace]") {
  const auto trace = trace_on(thimble::cpu, 4 << 20);
  trace_program(*trace, 200);
  const std::vector<Trace::Event> expected = {
      {Action::allocate, Category::parameter, 0, 64, 0, 100}, {Action::allocate, Category::temporary, 0, 256, 1, 200},
      {Action::relabel, Category::activation, 0, 0, 1, 200},  {Action::free, Category::parameter, 0, 0, 0, 100},
      {Action::allocate, Category::gradient, 0, 64, 2, 50},   {Action::free, Category::activation, 0, 0, 1, 200},
      {Action::free, Category::gradient, 0, 0, 2, 50}};
  CHECK(trace->events() == expected);

  CHECK(to_csv(trace->events()) == "id,lower,upper,size\n0,0,3,100\n1,1,5,200\n2,4,6,50\n");

  const auto line = timeline(trace->events());
  REQUIRE(line.size() == expected.size());
  const auto at = [&](std::size_t time, Category category) { return line[time][static_cast<std::size_t>(category)]; };
  CHECK(at(1, Category::parameter) == 100);
  CHECK(at(1, Category::temporary) == 200);
  CHECK(at(2, Category::temporary) == 0);
  CHECK(at(2, Category::activation) == 200);
  CHECK(at(4, Category::gradient) == 50);
  CHECK(line.back() == thimble::memory::CategoryBytes{});

  // A second relabel, and the free after it, subtract from the first relabel's category.
  const auto twice = timeline(std::vector<Trace::Event>{{Action::allocate, Category::temporary, 0, 64, 0, 10},
                                                        {Action::relabel, Category::activation, 0, 0, 0, 10},
                                                        {Action::relabel, Category::gradient, 0, 0, 0, 10},
                                                        {Action::free, Category::gradient, 0, 0, 0, 10}});
  CHECK(twice[2][static_cast<std::size_t>(Category::activation)] == 0);
  CHECK(twice[2][static_cast<std::size_t>(Category::gradient)] == 10);
  CHECK(twice[3] == thimble::memory::CategoryBytes{});

  const auto spans = lifetimes(trace->events());
  REQUIRE(spans.size() == 3);
  CHECK(spans[1].alignment == 256);
}

TEST_CASE("memory trace: dry and real runs of a program are equal, other programs are not", "[memory][trace]") {
  const auto real = trace_on(thimble::cpu, 4 << 20);
  const auto dry = trace_on(thimble::dry(thimble::cpu), 4 << 20);
  const auto other = trace_on(thimble::dry(thimble::cpu), 4 << 20);
  trace_program(*real, 200);
  trace_program(*dry, 200);
  trace_program(*other, 201);
  CHECK(*real == *dry);
  CHECK_FALSE(*real == *other);
}

TEST_CASE("memory trace: restart begins with the blocks that live", "[memory][trace]") {
  const auto trace = trace_on(thimble::dry(thimble::cpu));
  Block* const a = trace->allocate({.bytes = 10});
  Block* const b = trace->allocate({.bytes = 20, .alignment = 128});
  Block* const c = trace->allocate({.bytes = 30, .category = Category::parameter});
  trace->relabel(b, Category::optimizer);
  trace->deallocate(a, nullptr);
  trace->restart();
  Block* const d = trace->allocate({.bytes = 40});
  trace->deallocate(c, nullptr);
  const std::vector<Trace::Event> expected = {{Action::allocate, Category::optimizer, 0, 128, 0, 20},
                                              {Action::allocate, Category::parameter, 0, 64, 1, 30},
                                              {Action::allocate, Category::temporary, 0, 64, 2, 40},
                                              {Action::free, Category::parameter, 0, 0, 1, 30}};
  CHECK(trace->events() == expected);
  // A block still live at the end lives until the end.
  CHECK(to_csv(trace->events()) == "id,lower,upper,size\n0,0,4,20\n1,1,3,30\n2,2,4,40\n");
  trace->deallocate(b, nullptr);
  trace->deallocate(d, nullptr);
}

TEST_CASE("memory trace: the timeline's largest sum is the arena's peak", "[memory][trace]") {
  const auto arena = std::make_shared<Arena>(thimble::memory::make_dry_backing(thimble::cpu));
  Trace trace(arena);
  std::mt19937 random(9);
  std::vector<Block*> live;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 || live.empty()) {
      live.push_back(trace.allocate({.bytes = 1 + random() % 9999, .category = static_cast<Category>(random() % 7)}));
    } else {
      const std::size_t which = random() % live.size();
      trace.relabel(live[which], static_cast<Category>(random() % 7));
      trace.deallocate(live[which], nullptr);
      live[which] = live.back();
      live.pop_back();
    }
  }
  const auto events = trace.events();
  std::size_t largest = 0, live_at_end = 0;
  for (const auto& categories : timeline(events)) {
    live_at_end = std::accumulate(categories.begin(), categories.end(), std::size_t{0});
    largest = std::max(largest, live_at_end);
  }
  CHECK(largest == arena->statistics().peak_requested_bytes);
  CHECK(live_at_end == arena->statistics().requested_bytes);
  for (Block* block : live) trace.deallocate(block, nullptr);
}
