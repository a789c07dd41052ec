#include <thimble/memory/arena/arena.h>
#include <thimble/memory/summary.h>

#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>

#include "support/catch.h"

namespace {

using thimble::OutOfMemory;
using thimble::memory::Arena;
using thimble::memory::Backing;
using thimble::memory::Block;
using thimble::memory::Category;
using thimble::memory::Device;

constexpr std::size_t MiB = std::size_t{1} << 20;

std::unique_ptr<Arena> make_arena(Device device, Arena::Options options = {}) {
  return std::make_unique<Arena>(thimble::memory::make_backing(device), options);
}

/// Counts pages like a dry backing, tracks which granules have pages, and refuses on demand.
class RefusingBacking final : public Backing {
 public:
  struct State {
    std::set<std::size_t> granules;
    int commits_until_refusal = -1;  // -1 never refuses
    bool is_misused = false;         // a granule was committed twice, or returned without pages
  };
  explicit RefusingBacking(State& state) : state_(state), dry_(thimble::memory::make_dry_backing(thimble::cpu)) {}

  Device device() const noexcept override { return dry_->device(); }
  std::size_t granule() const noexcept override { return dry_->granule(); }
  std::size_t alignment() const noexcept override { return dry_->alignment(); }
  std::byte* reserve(std::size_t bytes) noexcept override { return bytes > 64 * MiB ? nullptr : dry_->reserve(bytes); }
  std::errc commit(std::size_t offset, std::size_t bytes) noexcept override {
    if (state_.commits_until_refusal == 0) return std::errc::not_enough_memory;
    if (state_.commits_until_refusal > 0) --state_.commits_until_refusal;
    for (std::size_t at = offset; at < offset + bytes; at += granule()) {
      if (!state_.granules.insert(at / granule()).second) state_.is_misused = true;
    }
    return {};
  }
  void decommit(std::size_t offset, std::size_t bytes) noexcept override {
    for (std::size_t at = offset; at < offset + bytes; at += granule()) {
      if (state_.granules.erase(at / granule()) == 0) state_.is_misused = true;
    }
  }
  void move(std::size_t, std::size_t, std::size_t, thimble::memory::Stream) noexcept override {}
  void fill(std::size_t, std::size_t, std::byte, thimble::memory::Stream) noexcept override {}

 private:
  State& state_;
  std::unique_ptr<Backing> dry_;
};

/// A block filled with a tag, to detect overwrites.
struct Tagged {
  Block* block;
  unsigned char tag;

  void write() const { std::memset(block->address, tag, block->bytes); }
  bool is_intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(block->address);
    return bytes[0] == tag && std::memcmp(bytes, bytes + 1, block->bytes - 1) == 0;
  }
};

/// Random allocations and frees with contents; returns the number of errors.
std::size_t random_arena_run(Arena& arena, std::uint32_t seed, int operations, std::size_t population) {
  std::mt19937 random(seed);
  std::vector<Tagged> live;
  std::size_t errors = 0;
  const auto drop = [&](std::size_t which) {
    if (!live[which].is_intact()) ++errors;
    arena.deallocate(live[which].block, nullptr);
    live[which] = live.back();
    live.pop_back();
  };
  for (int i = 0; i < operations; ++i) {
    if (live.empty() || random() % (2 * population) >= live.size()) {
      const std::size_t bytes = 1 + random() % (random() % 64 == 0 ? 60000 : 400);
      const std::size_t alignment = random() % 8 == 0 ? std::size_t{64} << random() % 7 : 64;
      Block* const block = arena.allocate({.bytes = bytes, .alignment = alignment});
      if (reinterpret_cast<std::uintptr_t>(block->address) % alignment != 0 || block->bytes != bytes) ++errors;
      live.push_back({block, static_cast<unsigned char>(random())});
      live.back().write();
    } else {
      drop(random() % live.size());
    }
  }
  while (!live.empty()) drop(live.size() - 1);
  return errors;
}

}  // namespace

TEST_CASE("memory arena: contents survive random allocations", "[memory][arena]") {
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u}) {
    const auto arena = make_arena(thimble::cpu, {.reserve_bytes = 1024 * MiB, .poison = seed == 4});
    INFO("seed " << seed);
    CHECK(random_arena_run(*arena, seed, 250000, 300) == 0);
    const Arena::Statistics after = arena->statistics();
    CHECK(after.live_blocks == 0);
    CHECK(after.requested_bytes == 0);
    CHECK(after.allocated_bytes == 0);
    CHECK(after.height_bytes == 0);
    CHECK(after.allocation_count > 100000);
    CHECK(after.peak_committed_bytes >= after.peak_height_bytes);
    CHECK(after.peak_height_bytes >= after.peak_allocated_bytes);
    CHECK(after.peak_allocated_bytes >= after.peak_requested_bytes);
  }
}

TEST_CASE("memory arena: threads share one arena", "[memory][arena]") {
  const auto arena = make_arena(thimble::cpu);
  std::atomic<std::size_t> errors{0};
  std::vector<std::thread> threads;
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] { errors += random_arena_run(*arena, seed, 50000, 100); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == 0);
  CHECK(arena->statistics().live_blocks == 0);
  CHECK(arena->statistics().height_bytes == 0);
}

TEST_CASE("memory arena: blocks do not overlap and are listed by address", "[memory][arena]") {
  const auto arena = make_arena(thimble::dry(thimble::cpu));
  std::mt19937 random(11);
  std::vector<Block*> live;
  for (int i = 0; i < 4000; ++i) {
    live.push_back(arena->allocate({.bytes = 1 + random() % 100000}));
    if (i % 3 == 0) {
      const std::size_t which = random() % live.size();
      arena->deallocate(live[which], nullptr);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  const std::vector<Arena::LiveBlock> blocks = arena->blocks();
  CHECK(blocks.size() == live.size());
  std::size_t end = 0, allocated = 0, requested = 0;
  bool is_ordered = true;
  for (const Arena::LiveBlock& placed : blocks) {
    is_ordered = is_ordered && placed.offset >= end && placed.block->address == arena->base() + placed.offset &&
                 placed.allocated_bytes >= placed.block->bytes;
    end = placed.offset + placed.allocated_bytes;
    allocated += placed.allocated_bytes;
    requested += placed.block->bytes;
  }
  CHECK(is_ordered);
  const Arena::Statistics figures = arena->statistics();
  CHECK(end == figures.height_bytes);
  CHECK(allocated == figures.allocated_bytes);
  CHECK(requested == figures.requested_bytes);
  CHECK(figures.fragmentation == Approx(1 - static_cast<double>(allocated) / static_cast<double>(end)));
  for (Block* block : live) arena->deallocate(block, nullptr);
}

TEST_CASE("memory arena: alignment", "[memory][arena]") {
  struct Row {
    Device device;
    std::size_t asked, given;
  };
  for (const Row& row : {Row{thimble::cpu, 1, 64}, Row{thimble::cpu, 64, 64}, Row{thimble::cpu, 4096, 4096},
                         Row{thimble::cpu, 2 * MiB, 2 * MiB}, Row{thimble::dry(thimble::cpu), 64, 64},
                         Row{thimble::dry(thimble::cuda()), 64, 512}, Row{thimble::dry(thimble::cuda()), 1024, 1024}}) {
    const auto arena = make_arena(row.device);
    Block* const first = arena->allocate({.bytes = 1});
    Block* const second = arena->allocate({.bytes = 1, .alignment = row.asked});
    INFO(to_string(row.device) << " " << row.asked);
    CHECK(reinterpret_cast<std::uintptr_t>(second->address) % row.asked == 0);
    CHECK(static_cast<std::size_t>(second->address - first->address) == row.given);
    arena->deallocate(first, nullptr);
    arena->deallocate(second, nullptr);
  }
}

TEST_CASE("memory arena: requests that are out of range", "[memory][arena]") {
  const auto arena = make_arena(thimble::dry(thimble::cpu));
  CHECK_THROWS_AS(arena->allocate({.bytes = 0}), thimble::ValueError);
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{96}, 4 * MiB}) {
    INFO(alignment);
    CHECK_THROWS_AS(arena->allocate({.bytes = 1, .alignment = alignment}), thimble::ValueError);
  }
  CHECK_THROWS_AS(make_arena(thimble::cuda(200)), thimble::DeviceError);
  thimble::launch(thimble::cpu,
                  [&](const thimble::Addresses&) { CHECK_THROWS_AS(arena->allocate({.bytes = 1}), thimble::Error); });
  CHECK(arena->statistics().allocation_count == 0);
}

TEST_CASE("memory arena: capacity is a bound of what is committed", "[memory][arena]") {
  for (const Device device : {thimble::cpu, thimble::dry(thimble::cpu)}) {
    const auto arena = make_arena(device, {.capacity_bytes = 5 * MiB});  // two granules
    CHECK(arena->statistics().capacity_bytes == 4 * MiB);
    Block* const a = arena->allocate({.bytes = 3 * MiB - 40, .category = Category::parameter});
    arena->deallocate(arena->allocate({.bytes = 8}), nullptr);
    const Arena::Statistics before = arena->statistics();
    try {
      arena->allocate({.bytes = 2 * MiB, .category = Category::gradient});
      FAIL("the capacity was exceeded");
    } catch (const OutOfMemory& error) {
      CHECK(error.facts().requested_bytes == 2 * MiB);
      CHECK(error.facts().in_use_bytes == 3 * MiB - 40);
      CHECK(error.facts().peak_bytes == 3 * MiB - 32);
      CHECK(error.facts().capacity_bytes == 4 * MiB);
      CHECK(error.facts().largest_free_bytes == 1 * MiB);
      const std::string text = error.what();
      for (const char* part :
           {"requested 2.00 MiB (2097152 B)", "gradient", "in use 3.00 MiB (3145688 B)", "peak 3.00 MiB (3145696 B)",
            "capacity 4.00 MiB", "largest free block 1.00 MiB", "fragmentation 0.0 %"}) {
        INFO(text << " lacks " << part);
        CHECK(text.find(part) != std::string::npos);
      }
    }
    CHECK(before == arena->statistics());
    Block* const b = arena->allocate({.bytes = 1 * MiB});
    CHECK(arena->statistics().committed_bytes == 4 * MiB);
    arena->deallocate(a, nullptr);
    Block* const retry = arena->allocate({.bytes = 2 * MiB});
    arena->deallocate(b, nullptr);
    arena->deallocate(retry, nullptr);
    CHECK_THROWS_AS(arena->allocate({.bytes = ~std::size_t{0}}), OutOfMemory);
  }
  CHECK(make_arena(thimble::cpu, {.capacity_bytes = 8 * MiB, .reserve_bytes = 2 * MiB})->statistics().capacity_bytes ==
        2 * MiB);
  CHECK(make_arena(thimble::cpu)->statistics().fragmentation == 0);
  const auto holed = make_arena(thimble::cpu, {.capacity_bytes = 4 * MiB});
  Block* const low = holed->allocate({.bytes = MiB});
  CHECK(holed->statistics().peak_fragmentation == 0.5);  // measured against a granule
  Block* const high = holed->allocate({.bytes = MiB - 8});
  holed->deallocate(low, nullptr);
  CHECK(holed->statistics().largest_free_bytes == 2 * MiB);  // above it; not merged with the hole below
  CHECK(holed->compact() == MiB - 8);
  holed->deallocate(high, nullptr);
  const auto nothing = make_arena(thimble::cpu, {.capacity_bytes = 1000});
  CHECK_THROWS_AS(nothing->allocate({.bytes = 1}), OutOfMemory);
}

TEST_CASE("memory arena: refused pages change nothing", "[memory][arena]") {
  RefusingBacking::State state;
  {
    Arena arena(std::make_unique<RefusingBacking>(state), {.reserve_bytes = 256 * MiB});
    CHECK(arena.reserved_bytes() == 64 * MiB);  // halved until granted
    Block* a = arena.allocate({.bytes = 8 * MiB});
    Block* b = arena.allocate({.bytes = 8 * MiB});
    Block* c = arena.allocate({.bytes = 8 * MiB});
    arena.deallocate(b, nullptr);
    CHECK(arena.trim() == 8 * MiB);
    CHECK(arena.statistics().decommit_count == 1);
    const Arena::Statistics before = arena.statistics();
    const std::set<std::size_t> granules = state.granules;

    state.commits_until_refusal = 0;
    CHECK_THROWS_AS(arena.allocate({.bytes = 30 * MiB}), OutOfMemory);  // at the top
    CHECK_THROWS_AS(arena.allocate({.bytes = 5 * MiB}), OutOfMemory);   // in the hole that was trimmed
    CHECK(before == arena.statistics());
    CHECK(state.granules == granules);

    state.commits_until_refusal = -1;
    Block* const d = arena.allocate({.bytes = 5 * MiB});
    CHECK(static_cast<std::size_t>(d->address - arena.base()) == 8 * MiB);
    CHECK(arena.statistics().committed_bytes == 22 * MiB);
    CHECK(arena.statistics().peak_committed_bytes == 24 * MiB);
    for (Block* block : {a, c, d}) arena.deallocate(block, nullptr);
  }
  CHECK_FALSE(state.is_misused);
}

TEST_CASE("memory arena: a refusal between two runs of pages takes the first back", "[memory][arena]") {
  RefusingBacking::State state;
  {
    Arena arena(std::make_unique<RefusingBacking>(state), {.reserve_bytes = 64 * MiB});
    // Granules 0, 2 and 4 have pages, and only granule 0 has a block: a request across them needs two commits.
    std::vector<Block*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(arena.allocate({.bytes = 2 * MiB}));
    arena.deallocate(blocks[1], nullptr);
    arena.deallocate(blocks[3], nullptr);
    arena.trim();
    arena.deallocate(blocks[2], nullptr);
    CHECK(state.granules == std::set<std::size_t>{0, 2, 4});
    const Arena::Statistics before = arena.statistics();
    state.commits_until_refusal = 1;
    CHECK_THROWS_AS(arena.allocate({.bytes = 6 * MiB}), OutOfMemory);
    CHECK(state.granules == std::set<std::size_t>{0, 2, 4});
    CHECK(arena.statistics().committed_bytes == before.committed_bytes);
    CHECK(arena.statistics().peak_committed_bytes == before.peak_committed_bytes);
    state.commits_until_refusal = -1;
    Block* const wide = arena.allocate({.bytes = 6 * MiB});
    CHECK(state.granules.size() == 5);
    CHECK(arena.statistics().committed_bytes == 10 * MiB);
    for (Block* block : {blocks[0], blocks[4], wide}) arena.deallocate(block, nullptr);
    CHECK(arena.trim() == 10 * MiB);
    CHECK(state.granules.empty());
  }
  CHECK_FALSE(state.is_misused);
}

TEST_CASE("memory arena: a dry arena gives the offsets and figures of a real one", "[memory][arena]") {
  const auto real = make_arena(thimble::cpu, {.capacity_bytes = 64 * MiB});
  const auto dry = make_arena(thimble::dry(thimble::cpu), {.capacity_bytes = 64 * MiB});
  std::mt19937 random(5);
  std::vector<std::pair<Block*, Block*>> live;
  std::size_t differences = 0, refusals = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 100 < 53 || live.empty()) {
      const thimble::memory::Request request{.bytes = 1 + random() % (random() % 8 == 0 ? 4 * MiB : 50000)};
      Block* a = nullptr;
      Block* b = nullptr;
      try {
        a = real->allocate(request);
      } catch (const OutOfMemory&) {
        ++refusals;
      }
      try {
        b = dry->allocate(request);
      } catch (const OutOfMemory&) {
      }
      if ((a == nullptr) != (b == nullptr)) {
        ++differences;
        break;
      }
      if (a == nullptr) continue;
      if (a->address - real->base() != b->address - dry->base()) ++differences;
      live.emplace_back(a, b);
    } else {
      const std::size_t which = random() % live.size();
      real->deallocate(live[which].first, nullptr);
      dry->deallocate(live[which].second, nullptr);
      live[which] = live.back();
      live.pop_back();
    }
    if (i % 5000 == 4999 && real->trim() != dry->trim()) ++differences;
  }
  CHECK(differences == 0);
  CHECK(refusals > 0);
  CHECK(real->statistics() == dry->statistics());
  for (const auto& [a, b] : live) {
    real->deallocate(a, nullptr);
    dry->deallocate(b, nullptr);
  }
}

TEST_CASE("memory arena: trim gives back what no block touches", "[memory][arena]") {
  const auto arena = make_arena(thimble::cpu);
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(arena->allocate({.bytes = 3 * MiB}));
  for (const std::size_t i : {0u, 7u}) Tagged{blocks[i], 42}.write();
  CHECK(arena->statistics().committed_bytes == 24 * MiB);
  CHECK(arena->trim() == 0);
  for (const std::size_t i : {1u, 2u, 3u, 4u, 5u, 6u}) arena->deallocate(blocks[i], nullptr);
  // [3, 21) MiB is free: trimming returns the granules from 4 to 20 MiB.
  CHECK(arena->trim() == 16 * MiB);
  CHECK(arena->statistics().committed_bytes == 8 * MiB);
  CHECK(arena->statistics().peak_committed_bytes == 24 * MiB);
  arena->reset_peak();
  CHECK(arena->statistics().peak_committed_bytes == 8 * MiB);
  Block* const again = arena->allocate({.bytes = 18 * MiB});
  CHECK(again->address == arena->base() + 3 * MiB);
  Tagged{again, 7}.write();
  CHECK(arena->statistics().committed_bytes == 24 * MiB);
  for (const std::size_t i : {0u, 7u}) CHECK(Tagged{blocks[i], 42}.is_intact());
  for (Block* block : {blocks[0], blocks[7], again}) arena->deallocate(block, nullptr);
  CHECK(arena->trim() == 24 * MiB);
  CHECK(arena->statistics().committed_bytes == 0);
}

TEST_CASE("memory arena: poison shows in new and in freed blocks", "[memory][arena]") {
  const auto arena = make_arena(thimble::cpu, {.poison = true});
  Block* const a = arena->allocate({.bytes = 4096});
  Block* const b = arena->allocate({.bytes = 4096});
  const auto* const values = reinterpret_cast<const float*>(a->address);
  CHECK(Tagged{a, 0xFF}.is_intact());
  CHECK(values[0] != values[0]);  // a NaN
  Tagged{a, 1}.write();
  Tagged{b, 2}.write();
  std::byte* const address = a->address;
  arena->deallocate(a, nullptr);
  CHECK(std::to_integer<int>(address[0]) == 0xFF);
  CHECK(std::memcmp(address, address + 1, 4095) == 0);
  CHECK(Tagged{b, 2}.is_intact());
  arena->deallocate(b, nullptr);
}

TEST_CASE("memory arena: four hundred at a time, each with room", "[memory][arena]") {
  std::vector<std::shared_ptr<Arena>> arenas;
  for (int i = 0; i < 400; ++i) {
    arenas.push_back(make_arena(thimble::cpu));
    REQUIRE(arenas.back()->reserved_bytes() >= 1024 * MiB);
  }
  const auto used = [](Arena& arena) {
    Block* const block = arena.allocate({.bytes = 4 * MiB});
    const Arena::Statistics all = arena.statistics();
    arena.deallocate(block, nullptr);
    arena.trim();
    return all;
  };
  const auto dry = make_arena(thimble::dry(thimble::cpu));
  CHECK(used(*arenas.front()) == used(*arenas.back()));
  CHECK(used(*make_arena(thimble::cpu)) == used(*dry));  // reserved addresses are not booked
}

TEST_CASE("memory arena: peaks that are reset begin anew", "[memory][arena]") {
  const auto arena = make_arena(thimble::cpu);
  Block* const first = arena->allocate({.bytes = 1 * MiB});
  arena->deallocate(arena->allocate({.bytes = 1 * MiB}), nullptr);
  CHECK(arena->statistics().peak_height_bytes == 2 * MiB);
  arena->reset_peak();
  CHECK(arena->statistics().peak_height_bytes == 1 * MiB);
  arena->deallocate(first, nullptr);
}

TEST_CASE("memory arena: the figures in words", "[memory][arena]") {
  Arena::Statistics figures;
  figures.live_blocks = 2;
  figures.allocated_bytes = 3 * MiB;
  figures.height_bytes = 4 * MiB;
  figures.fragmentation = 0.25;
  figures.peak_allocated_bytes = 5 * MiB;
  figures.peak_height_bytes = 6 * MiB;
  figures.peak_committed_bytes = 10 * MiB;
  figures.peak_fragmentation = 0.5;
  figures.moved_bytes = 7 * MiB, figures.remapped_bytes = 5 * MiB;
  figures.device_time.unknown_moves = 1;
  const std::string text = thimble::memory::to_string(figures);
  INFO(text);
  CHECK(text.find("(5.00 MiB (5242880 B) with their pages, 2.00 MiB (2097152 B) copied)") != std::string::npos);
  CHECK(text.find("copies in 0.00 ms of the device so far, which is not known to be done") != std::string::npos);
  CHECK(text.find("arena: 2 blocks, allocated 3.00 MiB (3145728 B), height 4.00 MiB (4194304 B)") != std::string::npos);
  CHECK(text.find("at the peak: allocated 5.00 MiB (5242880 B), height 6.00 MiB (6291456 B), committed 10.00 MiB") !=
        std::string::npos);
  CHECK(text.find("fragmentation 25.0 % now, 50.0 % at the peak") != std::string::npos);
}
