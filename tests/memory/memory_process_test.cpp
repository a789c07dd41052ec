#include <thimble/memory/process/process.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

#include "program/spawned.h"
#include "support/catch.h"
#include "support/sanitizer.h"

namespace {

using thimble::OutOfMemory;
using thimble::memory::Arena;
using thimble::memory::Block;
namespace process = thimble::process;
using spawned_test::in_child;

constexpr std::size_t process_MiB = std::size_t{1} << 20;

std::size_t arena_rss(const Arena& arena) { return process::mapping_rss_bytes(arena.base(), arena.reserved_bytes()); }

/// Lowers RLIMIT_DATA to the current data of the process plus `more`.
[[maybe_unused]] bool limit_data(std::size_t more) {
  const rlim_t bytes = process::data_bytes() + more;
  const rlimit limit{bytes, bytes};
  return setrlimit(RLIMIT_DATA, &limit) == 0;
}

}  // namespace

TEST_CASE("memory process: resident bytes of the arena are its committed bytes", "[memory][process]") {
  thimble::memory::Stack stack = thimble::memory::make_resource(thimble::cpu);
  const Arena& arena = *stack.arena;
  CHECK(arena_rss(arena) == 0);
  std::mt19937 random(17);
  std::vector<Block*> live;
  std::size_t differences = 0;
  for (int i = 0; i < 120; ++i) {
    if (random() % 3 != 0 || live.empty()) {
      live.push_back(stack.top->allocate({.bytes = 1 + random() % (5 * process_MiB)}));
      // A block's pages are resident even before they are written.
      if (i % 2 == 0) std::memset(live.back()->address, 1, live.back()->bytes);
    } else {
      const std::size_t which = random() % live.size();
      stack.top->deallocate(live[which], nullptr);
      live[which] = live.back();
      live.pop_back();
    }
    if (i % 20 == 19) stack.arena->trim();
    if (arena_rss(arena) != arena.statistics().committed_bytes) ++differences;
  }
  CHECK(arena.statistics().committed_bytes > 50 * process_MiB);
  CHECK(differences == 0);
  for (Block* block : live) stack.top->deallocate(block, nullptr);
  stack.arena->trim();
  CHECK(arena_rss(arena) == 0);
}

TEST_CASE("memory process: resident bytes of a range that one mapping fills", "[memory][process]") {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const all = mmap(nullptr, 5 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(all != MAP_FAILED);
  auto* const range = static_cast<std::byte*>(all) + page;  // between two inaccessible pages
  REQUIRE(mprotect(range, 3 * page, PROT_READ | PROT_WRITE) == 0);
  std::memset(range, 1, 2 * page);
  CHECK(process::mapping_rss_bytes(range, 3 * page) == 2 * page);
  CHECK(process::mapping_rss_bytes(range, 3 * page - 1) == 0);  // the range does not contain the mapping
  munmap(all, 5 * page);
}

TEST_CASE("memory process: the process grows by what the arena commits", "[memory][process]") {
  const int result = in_child([] {
    thimble::memory::Stack stack = thimble::memory::make_resource(thimble::cpu);
    // Counts anonymous pages, since the program's file pages come and go meanwhile.
    const std::size_t rss = process::anonymous_rss_bytes(), data = process::data_bytes();
    const auto is_near = [](std::size_t bytes, std::size_t expected) {
      return bytes >= expected && bytes < expected + process_MiB;
    };
    Block* const block = stack.top->allocate({.bytes = 100 * process_MiB});
    const std::size_t taken_rss = process::anonymous_rss_bytes(), taken_data = process::data_bytes();
    std::memset(block->address, 1, block->bytes);
    const std::size_t written_rss = process::anonymous_rss_bytes();
    stack.top->deallocate(block, nullptr);
    stack.arena->trim();
    if (!is_near(taken_rss, rss + 100 * process_MiB)) return 1;
    if (!is_near(taken_data, data + 100 * process_MiB)) return 2;
    if (!is_near(written_rss, taken_rss)) return 3;  // no page is counted twice
    if (!is_near(process::anonymous_rss_bytes(), rss)) return 4;
    if (!is_near(process::data_bytes(), data)) return 5;
    if (process::peak_rss_bytes() < 100 * process_MiB) return 6;
    return 0;
  });
  CHECK(result == 0);
}

TEST_CASE("memory process: more than the machine has is refused before it is taken", "[memory][process]") {
  CHECK(process::available_bytes() > 0);
  const int result = in_child([] {
    // If the refusal fails, the kernel should kill this process first.
    if (std::FILE* const file = std::fopen("/proc/self/oom_score_adj", "w")) {
      std::fputs("1000", file);
      std::fclose(file);
    }
    thimble::memory::Stack stack = thimble::memory::make_resource(thimble::cpu);
    // Another process may free memory between the two readings, hence the retries.
    for (int attempt = 0; attempt < 20; ++attempt) {
      Block* granted = nullptr;
      try {
        granted = stack.top->allocate({.bytes = process::available_bytes() + 64 * process_MiB});
      } catch (const OutOfMemory&) {
        return stack.arena->statistics().committed_bytes == 0 ? 0 : 2;
      }
      stack.top->deallocate(granted, nullptr);
      stack.arena->trim();
    }
    return 1;
  });
  CHECK(result == 0);
}

// Not under a sanitizer: its extra memory would end the process at this limit, and its allocator has memory after the
// heap has run out.
#ifndef THIMBLE_TEST_HAS_SANITIZER
TEST_CASE("memory process: reserving costs no data, and a data limit is met as OutOfMemory", "[memory][process]") {
  const int result = in_child([] {
    if (!limit_data(64 * process_MiB)) return 1;
    thimble::memory::Stack stack = thimble::memory::make_resource(thimble::cpu);
    if (stack.arena->reserved_bytes() < 1024 * process_MiB) return 2;
    std::vector<Block*> blocks;
    try {
      for (;;) blocks.push_back(stack.top->allocate({.bytes = 4 * process_MiB}));
    } catch (const OutOfMemory& error) {
      if (std::strstr(error.what(), "the system refuses more pages") == nullptr) return 3;
    }
    if (blocks.size() < 14 || blocks.size() > 16) return 4;
    const Arena::Statistics before = stack.arena->statistics();
    try {
      stack.top->allocate({.bytes = 4 * process_MiB});
      return 5;
    } catch (const OutOfMemory&) {
    }
    if (!(before == stack.arena->statistics())) return 6;
    stack.top->deallocate(blocks.back(), nullptr);
    blocks.back() = stack.top->allocate({.bytes = 4 * process_MiB});  // a retry reuses committed pages
    for (Block* block : blocks) stack.top->deallocate(block, nullptr);
    return 0;
  });
  CHECK(result == 0);
}

TEST_CASE("memory process: a steady state calls no allocator", "[memory][process]") {
  const int result = in_child([] {
    thimble::memory::Stack stack = thimble::memory::make_resource(thimble::cpu, {.limit_bytes = 512 * process_MiB});
    const thimble::PathId paths[] = {0, thimble::join_path(0, "a"), thimble::join_path(0, "b")};
    std::vector<Block*> live(400, nullptr);
    const auto step = [&] {
      std::mt19937 random(1);
      for (int i = 0; i < 20000; ++i) {
        Block*& slot = live[random() % live.size()];
        stack.top->deallocate(slot, nullptr);
        slot = nullptr;
        slot = stack.top->allocate({.bytes = 1 + random() % 20000, .path = paths[random() % 3]});
        stack.top->relabel(slot, thimble::memory::Category::activation);
      }
      for (Block*& slot : live) {
        stack.top->deallocate(slot, nullptr);
        slot = nullptr;
      }
    };
    step();
    // Exhausts the heap to the last byte.
    if (!limit_data(0)) return 1;
    for (std::size_t bytes = 64 * process_MiB; bytes > 0; bytes = bytes > 16 ? bytes / 2 : 0) {
      void* volatile block = nullptr;  // volatile: an unused malloc may be optimized away
      do {
        block = std::malloc(bytes);
      } while (block != nullptr);
    }
    void* volatile block = ::operator new(1, std::nothrow);
    if (block != nullptr) return 2;
    try {
      for (int repeat = 0; repeat < 3; ++repeat) step();
    } catch (...) {
      return 3;
    }
    return 0;
  });
  CHECK(result == 0);
}
#endif
#undef THIMBLE_TEST_HAS_SANITIZER
