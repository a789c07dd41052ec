#include <thimble/memory/stack.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/summary.h>

#include "catch.h"

namespace {

using thimble::Block;
using thimble::Category;
using thimble::Device;
namespace memory = thimble::memory;

}  // namespace

TEST_CASE("memory stack: one default resource per device", "[memory][stack]") {
  const std::vector<Device> devices = {thimble::cpu, thimble::dry(thimble::cpu), thimble::dry(thimble::cuda(0)),
                                       thimble::dry(thimble::cuda(1))};
  for (const Device device : devices) {
    INFO(to_string(device));
    const auto resource = thimble::default_resource(device);
    CHECK(resource->device() == device);
    CHECK(resource == thimble::default_resource(device));
    CHECK(resource == memory::default_stack(device).top);
    for (const Device other : devices) CHECK((thimble::default_resource(other) == resource) == (other == device));
  }
  CHECK_THROWS_AS(thimble::default_resource(thimble::cuda(3)), thimble::DeviceError);
}

TEST_CASE("memory stack: questions to the default resource", "[memory][stack]") {
  // A device of its own, so that other tests' tensors do not count.
  const Device device = thimble::dry(thimble::cuda(200));
  const auto resource = thimble::default_resource(device);
  Block* const kept = resource->allocate({.bytes = 1000, .category = Category::parameter});
  Block* const big = resource->allocate({.bytes = 5 << 20});
  resource->deallocate(big, nullptr);
  CHECK(memory::max_allocated(device) == 1000 + (5 << 20));
  CHECK(memory::statistics(device).peak_committed_bytes == 6 << 20);
  CHECK(memory::statistics(device).allocated_bytes == 1024);
  const std::string text = memory::summary(device);
  INFO(text);
  CHECK(text.find("memory on dry(cuda:200)") != std::string::npos);
  CHECK(text.find("5.00 MiB (5243880 B)") != std::string::npos);
  CHECK(text.find("committed 6.00 MiB (6291456 B)") != std::string::npos);
  memory::reset_peak(device);
  CHECK(memory::max_allocated(device) == 1000);
  CHECK(memory::statistics(device).peak_committed_bytes == 2 << 20);
  resource->deallocate(kept, nullptr);
}

TEST_CASE("memory stack: policies stand in order and share a lock", "[memory][stack]") {
  const memory::Stack stack = memory::make_resource(
      thimble::dry(thimble::cpu), {.arena = {.capacity_bytes = 64 << 20}, .limit_bytes = 5000, .trace = true});
  CHECK(stack.top == stack.trace);
  CHECK(stack.trace->lock() == stack.arena->lock());
  CHECK(stack.ledger->lock() == stack.arena->lock());
  CHECK(stack.limit->lock() == stack.arena->lock());
  CHECK(stack.arena->statistics().capacity_bytes == 64 << 20);
  Block* const block = stack.top->allocate({.bytes = 4000, .category = Category::input});
  try {
    stack.top->allocate({.bytes = 2000});
    FAIL("the limit was exceeded");
  } catch (const thimble::OutOfMemory& error) {
    CHECK(std::string(error.what()).find("input 3.91 KiB (4000 B)") != std::string::npos);
  }
  CHECK(stack.trace->events().size() == 1);
  CHECK(stack.ledger->bytes(Category::input) == 4000);
  CHECK(stack.arena->statistics().requested_bytes == 4000);
  stack.top->deallocate(block, nullptr);

  const memory::Stack plain = memory::make_resource(thimble::dry(thimble::cpu));
  CHECK(plain.top == plain.ledger);
  CHECK(plain.limit == nullptr);
  CHECK(plain.trace == nullptr);
}

TEST_CASE("memory stack: how bytes are written", "[memory][stack]") {
  struct Row {
    std::size_t bytes;
    const char* text;
  };
  for (const Row& row :
       {Row{0, "0 B"}, Row{1023, "1023 B"}, Row{1024, "1.00 KiB (1024 B)"}, Row{1536, "1.50 KiB (1536 B)"},
        Row{1048575, "1.00 MiB (1048575 B)"}, Row{15820000000, "14.73 GiB (15820000000 B)"},
        Row{~std::size_t{0}, "16.00 EiB (18446744073709551615 B)"}}) {
    CHECK(memory::exact_bytes(row.bytes) == row.text);
  }
  CHECK(memory::human_bytes(1536) == "1.50 KiB");
}

TEST_CASE("memory stack: time of an allocate and a free", "[.benchmark]") {
  const memory::Stack stack = memory::make_resource(thimble::cpu);
  thimble::Resource& resource = *stack.top;
  std::vector<Block*> live(512, nullptr);
  const auto best_of = [](const char* name, int pairs, auto&& body) {
    double best = 1e300;
    for (int repeat = 0; repeat < 300; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      body();
      const std::chrono::duration<double, std::nano> ns = std::chrono::steady_clock::now() - start;
      best = std::min(best, ns.count() / pairs);
    }
    std::printf("%-40s %6.1f ns per allocate and free\n", name, best);
    CHECK(best > 0);
  };
  best_of("one block at a time", 10000, [&] {
    for (std::size_t i = 0; i < 10000; ++i) {
      resource.deallocate(resource.allocate({.bytes = 1000 + (i & 1023) * 64}), nullptr);
    }
  });
  best_of("the same from malloc, for comparison", 10000, [&] {
    for (std::size_t i = 0; i < 10000; ++i) {
      void* volatile block = std::malloc(1000 + (i & 1023) * 64);
      std::free(block);
    }
  });
  best_of("512 blocks up, then down", 512 * 20, [&] {
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (std::size_t i = 0; i < 512; ++i) live[i] = resource.allocate({.bytes = 64 + i * 64});
      for (std::size_t i = 512; i-- > 0;) resource.deallocate(live[i], nullptr);
    }
  });
  for (Block*& block : live) block = resource.allocate({.bytes = 1000});
  best_of("a random one of 512 replaced", 10000, [&] {
    std::uint32_t random = 1;
    for (int i = 0; i < 10000; ++i) {
      random = random * 1664525u + 1013904223u;
      Block*& block = live[random >> 23];
      resource.deallocate(block, nullptr);
      block = resource.allocate({.bytes = 64 + ((random >> 8) & 0x3fff)});
    }
  });
  for (Block* block : live) resource.deallocate(block, nullptr);
}
