#include <thimble/memory/stack.h>

#include <sys/resource.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>

#include "support/catch.h"

namespace {

using thimble::memory::Block;
using thimble::memory::Category;
using thimble::memory::Device;
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
  CHECK_THROWS_AS(thimble::default_resource({.index = 3}), thimble::DeviceError);  // one cpu
}

TEST_CASE("memory stack: questions to the default resource", "[memory][stack]") {
  // A separate device, so that other tests' tensors do not count.
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
  CHECK_THROWS_WITH(stack.top->allocate({.bytes = 2000}), Catch::Contains("input 3.91 KiB (4000 B)"));
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

namespace {

/// Patterns of allocation; each method makes `pairs` allocations and frees.
class AllocationTimes {
 public:
  explicit AllocationTimes(thimble::memory::Resource& resource)
      : resource_(resource), live_(512, nullptr), sizes_(4096) {
    // 64 B to 64 KiB, evenly over the powers of two.
    std::mt19937 random(7);
    for (std::size_t& bytes : sizes_) bytes = (std::size_t{64} << random() % 10) + random() % 64 * 8;
  }

  void immediate() {
    for (std::size_t i = 0; i < pairs; ++i) resource_.deallocate(take(i), nullptr);
  }
  void lifo() {
    for (std::size_t done = 0; done < pairs; done += live_.size()) {
      for (std::size_t i = 0; i < live_.size(); ++i) live_[i] = take(done + i);
      for (std::size_t i = live_.size(); i-- > 0;) give(live_[i]);
    }
  }
  void fifo() {
    for (std::size_t i = 0; i < pairs; ++i) {
      Block*& oldest = live_[i % live_.size()];
      if (oldest != nullptr) give(oldest);
      oldest = take(i);
    }
  }
  void random() {
    for (std::size_t i = 0; i < pairs; ++i) {
      seed_ = seed_ * 1664525u + 1013904223u;
      Block*& any = live_[seed_ >> 23];
      if (any != nullptr) give(any);
      any = take(i);
    }
  }
  /// Allocates `live` tensors of 4 KiB to 2 MiB, then frees them in reverse or in mixed order.
  void tensors(std::size_t live, bool is_lifo) {
    for (std::size_t done = 0; done < pairs; done += live) {
      for (std::size_t i = 0; i < live; ++i) live_[i] = resource_.allocate({.bytes = tensor_bytes(i)});
      for (std::size_t i = live; i-- > 0;) give(live_[is_lifo ? i : i * 37 % live]);
    }
  }
  void tensors_lifo() { tensors(128, true); }
  void tensors_mixed() { tensors(128, false); }
  void drain() {
    for (Block*& block : live_) {
      if (block != nullptr) give(block);
    }
  }

  static constexpr std::size_t pairs = 4096;

 private:
  std::size_t tensor_bytes(std::size_t i) const { return sizes_[i] % 64 * 64 + (std::size_t{4096} << i * 11 % 10); }
  Block* take(std::size_t i) { return resource_.allocate({.bytes = sizes_[i % sizes_.size()]}); }
  void give(Block*& block) {
    resource_.deallocate(block, nullptr);
    block = nullptr;
  }

  thimble::memory::Resource& resource_;
  std::vector<Block*> live_;
  std::vector<std::size_t> sizes_;
  std::uint32_t seed_ = 1;
};

/// malloc behind the same interface, for comparison.
class MallocResource final : public thimble::memory::Resource {
 public:
  Block* allocate(const thimble::memory::Request& request) override {
    return static_cast<Block*>(std::malloc(request.bytes));
  }
  void deallocate(Block* block, thimble::memory::Stream) noexcept override { std::free(block); }
  void relabel(Block*, Category) noexcept override {}
  Device device() const noexcept override { return thimble::cpu; }
};

/// Processor time, which ignores other load on the machine.
double processor_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace

TEST_CASE("memory stack: a steady state takes no page fault and commits nothing", "[memory][stack]") {
  const memory::Stack stack = memory::make_resource(thimble::cpu);
  AllocationTimes times(*stack.top);
  const auto all = [&] {
    times.immediate();
    times.lifo();
    times.fifo();
    times.random();
    times.drain();
  };
  for (int i = 0; i < 8; ++i) all();
  const thimble::memory::Arena::Statistics before = stack.arena->statistics();
  const long faults = page_faults();
  all();
  CHECK(page_faults() == faults);
  CHECK(stack.arena->statistics().commit_count == before.commit_count);
  CHECK(stack.arena->statistics().allocation_count > before.allocation_count + 4 * AllocationTimes::pairs - 1024);
}

TEST_CASE("memory stack: time of an allocate and a free", "[.benchmark]") {
  const memory::Stack stack = memory::make_resource(thimble::cpu);
  MallocResource plain;
  struct Pattern {
    const char* name;
    void (AllocationTimes::*run)();
  };
  const Pattern patterns[] = {{"one block at a time", &AllocationTimes::immediate},
                              {"512 up, then down (LIFO)", &AllocationTimes::lifo},
                              {"the oldest of 512 replaced (FIFO)", &AllocationTimes::fifo},
                              {"a random one of 512 replaced", &AllocationTimes::random},
                              {"128 tensors up, then down", &AllocationTimes::tensors_lifo},
                              {"128 tensors up, freed in mixed order", &AllocationTimes::tensors_mixed}};
  const auto best_of = [](AllocationTimes& times, const Pattern& pattern) {
    double best = 1e300;
    for (int repeat = 0; repeat < 300; ++repeat) {
      const double start = processor_ns();
      (times.*pattern.run)();
      best = std::min(best, (processor_ns() - start) / static_cast<double>(AllocationTimes::pairs));
    }
    times.drain();
    return best;
  };
  constexpr std::size_t pattern_count = std::size(patterns);
  std::array<double, pattern_count> with_ledger{}, alone{}, stock{}, untrimmed{};
  const auto measure = [&](thimble::memory::Resource& resource, std::array<double, pattern_count>& ns) {
    AllocationTimes times(resource);
    for (std::size_t i = 0; i < pattern_count; ++i) ns[i] = best_of(times, patterns[i]);
  };
  measure(*stack.top, with_ledger);
  measure(*stack.arena, alone);
  measure(plain, stock);
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);  // malloc at its best: it keeps its memory
  mallopt(M_TRIM_THRESHOLD, -1);
  measure(plain, untrimmed);
#endif
  std::printf("ns per allocate and free: with ledger, arena alone, stock malloc, glibc that trims nothing\n");
  for (std::size_t i = 0; i < pattern_count; ++i) {
    std::printf("%-38s %6.1f %6.1f %6.1f %6.1f\n", patterns[i].name, with_ledger[i], alone[i], stock[i], untrimmed[i]);
  }
  CHECK(stack.ledger->bytes() == 0);
}

TEST_CASE("memory stack: time of pages, the first time and the second", "[.benchmark]") {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const memory::Stack stack = memory::make_resource(thimble::cpu);
  const auto ms_of_one = [&] {
    const auto start = std::chrono::steady_clock::now();
    Block* const block = stack.top->allocate({.bytes = bytes});
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    stack.top->deallocate(block, nullptr);
    return ms.count();
  };
  double first = 1e300, second = 1e300;
  for (int repeat = 0; repeat < 8; ++repeat) {
    first = std::min(first, ms_of_one());
    second = std::min(second, ms_of_one());
    CHECK(stack.arena->trim() == bytes);
  }
  std::printf("256 MiB: %.1f ms with new pages (%.1f GB/s), %.5f ms with pages that are there\n", first,
              static_cast<double>(bytes) / first * 1e-6, second);
}
