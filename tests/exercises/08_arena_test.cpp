// Answers to the exercises of chapter 8, docs/book/08-finding-a-place.md.

#include <random>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

using namespace thimble;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20, granule = 2 * mib;

std::size_t offset(const memory::Stack& stack, const memory::Block* block) {
  return static_cast<std::size_t>(block->address - stack.arena->base());
}

}  // namespace

TEST_CASE("exercise 8.1: every second block freed", "[exercise]") {
  const memory::Stack stack = memory::make_resource(dry(cpu));
  std::vector<memory::Block*> blocks;
  for (std::size_t i = 1; i <= 8; ++i) blocks.push_back(stack.top->allocate({.bytes = i * mib}));
  for (const std::size_t odd : {0U, 2U, 4U, 6U}) stack.top->deallocate(blocks[odd], nullptr);
  // 2 + 4 + 6 + 8 of 36 MiB are allocated.
  CHECK(stack.arena->statistics().height_bytes == 36 * mib);
  CHECK(stack.arena->statistics().fragmentation == Approx(1 - 20.0 / 36.0));
  // The largest hole is exactly 7 MiB: the seventh block's place.
  memory::Block* const seven = stack.top->allocate({.bytes = 7 * mib});
  CHECK(offset(stack, seven) == 21 * mib);
  CHECK(stack.arena->statistics().height_bytes == 36 * mib);
  stack.top->deallocate(seven, nullptr);
  for (const std::size_t even : {1U, 3U, 5U, 7U}) stack.top->deallocate(blocks[even], nullptr);
}

TEST_CASE("exercise 8.2: blocks slide, pinned ones do not", "[exercise]") {
  for (const bool is_pinned : {false, true}) {
    memory::Options options;
    options.arena.capacity_bytes = 12 * granule;
    const memory::Stack stack = memory::make_resource(dry(cpu), std::move(options));
    const auto allocate = [&](std::size_t units) { return stack.top->allocate({.bytes = units * granule}); };
    memory::Block *const a = allocate(2), *const first = allocate(2), *const b = allocate(4),
                         *const second = allocate(2);
    memory::Block* const c = allocate(1);
    stack.top->deallocate(first, nullptr), stack.top->deallocate(second, nullptr);
    if (is_pinned) c->pins = 1;
    memory::Block* const fresh = allocate(3);
    // Unpinned, only c moves: one granule. Pinned, it is a wall, and b has to move instead: four.
    CHECK(stack.arena->statistics().moved_bytes == (is_pinned ? 4 : 1) * granule);
    c->pins = 0;
    for (memory::Block* const block : {a, b, c, fresh}) stack.top->deallocate(block, nullptr);
  }
}

TEST_CASE("exercise 8.3: the same requests, the same offsets", "[exercise]") {
  const auto offsets = [](memory::Device device) {
    const memory::Stack stack = memory::make_resource(device);
    std::mt19937 random(5);
    std::vector<memory::Block*> live;
    std::vector<std::size_t> result;
    for (int i = 0; i < 2000; ++i) {
      if (live.size() > 50 || (!live.empty() && random() % 3 == 0)) {
        const std::size_t which = random() % live.size();
        stack.top->deallocate(live[which], nullptr);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        live.push_back(stack.top->allocate({.bytes = 1 + random() % 100'000}));
        result.push_back(offset(stack, live.back()));
      }
    }
    for (memory::Block* const block : live) stack.top->deallocate(block, nullptr);
    return result;
  };
  CHECK(offsets(dry(cpu)) == offsets(cpu));
}
