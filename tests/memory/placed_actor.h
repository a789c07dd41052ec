#pragma once
// Shared by tests of the placed arena: scripts of allocations, and an actor that plays them and detects every overlap.

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <thimble/memory/stack.h>

#include "support/catch.h"

namespace placed_test {

using namespace thimble;

// A line of a script: allocates `bytes` under a name, or frees the name.
struct Line {
  char name;
  std::size_t bytes;  // 0 frees
};
using Script = std::vector<Line>;

// Plays scripts on a resource; it fills every live block with its name, so that an overlap shows.
class Actor {
 public:
  explicit Actor(memory::Resource& resource) : resource_(resource) {}
  ~Actor() {
    while (!live_.empty()) free(live_.begin()->first);
  }

  memory::Block* allocate(char name, std::size_t bytes, std::size_t alignment = 64) {
    memory::Block* const block = resource_.allocate({.bytes = bytes, .alignment = alignment});
    CHECK(block->bytes == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(block->address) % alignment == 0);
    std::memset(block->address, name, bytes);
    REQUIRE(live_.emplace(name, block).second);
    return block;
  }
  void free(char name) {
    memory::Block* const block = live_.at(name);
    CHECK(is_intact(name, *block));
    live_.erase(name);
    resource_.deallocate(block, nullptr);
  }
  void play(const Script& script) {
    for (const Line& line : script)
      line.bytes > 0 ? static_cast<void>(allocate(line.name, line.bytes)) : free(line.name);
  }
  memory::Block* block(char name) const { return live_.at(name); }
  bool is_live(char name) const { return live_.count(name) > 0; }
  std::size_t live() const { return live_.size(); }
  void check_all() const {
    for (const auto& [name, block] : live_) CHECK(is_intact(name, *block));
  }

 private:
  static bool is_intact(char name, const memory::Block& block) {
    return std::all_of(block.address, block.address + block.bytes, [&](std::byte b) { return b == std::byte(name); });
  }
  memory::Resource& resource_;
  std::map<char, memory::Block*> live_;
};

inline const Script step_script = {{'a', 1000}, {'b', 5000}, {'a', 0}, {'c', 300},
                                   {'d', 900},  {'b', 0},    {'d', 0}, {'c', 0}};

// The plan of a script, made from its trace.
inline memory::StepPlacement plan_of(const Script& script) {
  memory::Options options;
  options.trace = true;
  const memory::Stack stack = memory::make_resource(cpu, options);
  Actor actor(*stack.top);
  actor.play(script);
  return memory::make_step_placement(stack.trace->events());
}

inline memory::Stack stack_of(std::vector<memory::StepPlacement> plans, std::size_t capacity = 0) {
  memory::Options options;
  options.plans = std::move(plans);
  options.arena.capacity_bytes = capacity;
  options.trace = true;
  return memory::make_resource(cpu, options);
}

inline bool lies_in_region(const memory::Stack& stack, const memory::Block* block) {
  const auto blocks = stack.arena->blocks();
  return std::none_of(blocks.begin(), blocks.end(),
                      [&](const memory::Arena::LiveBlock& p) { return p.block == block; });
}

}  // namespace placed_test
