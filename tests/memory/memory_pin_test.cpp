// Pins, launches and compactions from many threads: which may hold a block in place, and which wait.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"

TEST_CASE("memory pin: a Pin holds a tensor's block, the others go around it", "[memory][pin]") {
  const auto stack = thimble::memory::make_resource(thimble::cpu);
  const thimble::ResourceScope scope(stack.top);
  thimble::Tensor a = thimble::full({16}, 1), b = thimble::full({16}, 2);
  const thimble::Tensor c = thimble::full({16}, 3), d = thimble::full({16}, 4);
  a = thimble::Tensor();
  {
    const thimble::memory::Pin pin(c), again(c.detach());
    const auto* const at = pin.as<float>();
    CHECK(stack.arena->compact() == 64);  // moves b; c stops d
    CHECK(pin.as<float>() == at);
    b = thimble::Tensor();
    CHECK(stack.arena->compact() == 0);
    CHECK(at[15] == 3);
  }
  CHECK(stack.arena->compact() == 128);
  CHECK(thimble::to_host<float>(c) == std::vector<float>(16, 3));
  CHECK(thimble::to_host<float>(d) == std::vector<float>(16, 4));
  const thimble::memory::Pin none(thimble::Tensor::empty({0}));
  CHECK(none.data() == nullptr);
}

TEST_CASE("memory pin: launches and compactions of many threads", "[memory][pin]") {
  // Some threads launch and verify their tensors, some pin, and some make the arena move everything.
  const auto stack = thimble::memory::make_resource(thimble::cpu);
  std::atomic<std::size_t> errors{0}, launches{0};
  std::atomic<bool> is_over{false};
  const auto verify = [&](float seed) {
    const thimble::ResourceScope scope(stack.top);
    std::vector<thimble::Tensor> tensors;
    std::mt19937 random(static_cast<unsigned>(seed));
    while (!is_over) {
      const auto n = static_cast<std::int64_t>(1 + random() % 500);
      tensors.push_back(thimble::full({n}, seed + static_cast<float>(n)));
      if (tensors.size() > 20) tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(random() % 20));
      for (const thimble::Tensor& t : tensors) {
        const auto is_right = [&](const float* values) {
          for (std::int64_t i = 0; i < t.elements(); ++i) {
            if (values[i] != seed + static_cast<float>(t.elements())) return false;
          }
          return true;
        };
        if (random() % 16 == 0) {
          const thimble::memory::Pin pin(t);
          const float* const values = pin.as<float>();
          std::this_thread::yield();
          if (!is_right(values) || pin.as<float>() != values) ++errors;
        }
        thimble::launch(thimble::cpu, [&](const thimble::Addresses& at) {
          if (!is_right(at.as<float>(t))) ++errors;
        });
        ++launches;
      }
    }
  };
  std::vector<std::thread> threads;
  for (const float seed : {1000.f, 2000.f, 3000.f}) threads.emplace_back(verify, seed);
  std::size_t moved = 0;
  for (int i = 0; i < 2000 || (launches < 20000 && i < 1000000); ++i) {
    moved += stack.arena->compact();
    std::this_thread::yield();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(moved > 0);
  CHECK(stack.arena->statistics().moved_bytes == moved);
  CHECK_FALSE(thimble::is_any_thread_launching());
  CHECK(stack.ledger->bytes() == 0);
}

TEST_CASE("memory pin: how fast blocks are moved", "[.benchmark]") {
  using thimble::memory::Arena;
  using thimble::memory::Block;
  constexpr std::size_t MiB = std::size_t{1} << 20;
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{512} << 10, std::size_t{8} << 20}) {
    double best = 1e300;
    std::size_t moved = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      Arena arena(thimble::memory::make_cpu_backing());
      std::vector<Block*> blocks;
      for (std::size_t at = 0; at < 64 * MiB; at += bytes) blocks.push_back(arena.allocate({.bytes = bytes}));
      for (std::size_t i = 0; i < blocks.size(); i += 2) arena.deallocate(std::exchange(blocks[i], nullptr), nullptr);
      moved = arena.compact();
      best = std::min(best, arena.statistics().compaction_time.ms);
      for (Block* block : blocks) arena.deallocate(block, nullptr);
    }
    std::printf("%zu KiB blocks: %zu MiB moved in %.2f ms, %.1f GB/s\n", bytes >> 10, moved >> 20, best,
                static_cast<double>(moved) / best * 1e-6);
    CHECK(moved > 0);
  }
  double best = 1e300;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) thimble::launch(thimble::cpu, [](const thimble::Addresses&) {});
    const std::chrono::duration<double, std::nano> ns = std::chrono::steady_clock::now() - start;
    best = std::min(best, ns.count() / 1000);
  }
  std::printf("an empty launch: %.1f ns\n", best);
}
