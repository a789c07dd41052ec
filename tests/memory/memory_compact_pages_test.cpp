// Compaction where pages come and go, or the system refuses them.

#include <thimble/memory/arena/compact.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/arena/arena.h>

#include "support/catch.h"

namespace {

using thimble::Arena;
using thimble::Backing;
using thimble::CompactionWindow;
using thimble::OutOfMemory;
using thimble::memory::Block;
using thimble::memory::Device;

constexpr std::size_t compact_MiB = std::size_t{1} << 20;

/// Counts pages and refuses some, over host memory.
class ShortBacking final : public Backing {
 public:
  explicit ShortBacking(const bool& refuses) : refuses_(refuses) {}
  Device device() const noexcept override { return real_->device(); }
  std::size_t granule() const noexcept override { return real_->granule(); }
  std::size_t alignment() const noexcept override { return real_->alignment(); }
  std::byte* reserve(std::size_t bytes) noexcept override { return real_->reserve(bytes); }
  std::errc commit(std::size_t offset, std::size_t bytes) noexcept override {
    return refuses_ ? std::errc::not_enough_memory : real_->commit(offset, bytes);
  }
  void decommit(std::size_t offset, std::size_t bytes) noexcept override { real_->decommit(offset, bytes); }
  void move(std::size_t from, std::size_t to, std::size_t bytes, thimble::Stream stream) noexcept override {
    real_->move(from, to, bytes, stream);
  }
  void fill(std::size_t offset, std::size_t bytes, std::byte value, thimble::Stream stream) noexcept override {
    real_->fill(offset, bytes, value, stream);
  }

 private:
  const bool& refuses_;
  std::unique_ptr<Backing> real_ = thimble::make_cpu_backing();
};

}  // namespace

TEST_CASE("memory compact: the whole granules of a slide, and where pages end after it, by counting",
          "[memory][compact]") {
  constexpr std::size_t granule = 4, granules = 7;
  for (std::size_t to = 0; to < 9; ++to) {
    for (std::size_t from = to + 1; from < 20; ++from) {
      for (std::size_t size = 1; size < 14; ++size) {
        std::size_t first = 0, count = 0;
        for (std::size_t g = 10; g-- > 0;) {
          if ((from - to) % granule == 0 && g * granule >= from && (g + 1) * granule <= from + size) first = g, ++count;
        }
        const thimble::PageMove move = thimble::page_move(from, to, size, granule);
        const std::size_t distance = count > 0 ? (from - to) / granule : 0;
        if (move.first != first || move.count != count || move.distance != distance) FAIL_CHECK(from << to << size);
      }
    }
  }
  for (unsigned bits = 0; bits < 1u << granules; ++bits) {
    for (std::size_t from = 1; from < granules; ++from) {
      for (std::size_t count = 1; from + count <= granules; ++count) {
        const unsigned moved = ((1u << count) - 1) << from;
        if ((bits & moved) != moved) continue;  // a block has pages
        for (std::size_t to = 0; to < from; ++to) {
          thimble::PageMap map{granule, std::vector<std::uint8_t>(granules), 0};
          for (std::size_t g = 0; g < granules; ++g) map.has_pages[g] = bits >> g & 1;
          map.extend_solid();
          map.remap(from, to, count);
          const auto gap = std::find(map.has_pages.begin(), map.has_pages.end(), 0);
          if (map.solid_bytes != granule * static_cast<std::size_t>(gap - map.has_pages.begin())) FAIL_CHECK(bits);
        }
      }
    }
  }
}

TEST_CASE("memory compact: holes without pages are given some", "[memory][compact]") {
  Arena arena(thimble::make_cpu_backing(), {.capacity_bytes = 32 * compact_MiB});
  std::vector<Block*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(arena.allocate({.bytes = 4 * compact_MiB}));
    std::memset(blocks.back()->address, i, 4 * compact_MiB);
  }
  for (const std::size_t i : {0u, 2u, 4u, 6u}) arena.deallocate(blocks[i], nullptr);
  CHECK(arena.trim() == 16 * compact_MiB);
  Block* const wide = arena.allocate({.bytes = 16 * compact_MiB});
  std::memset(wide->address, 42, 16 * compact_MiB);
  for (const int i : {1, 3, 5, 7}) {
    const auto* bytes = reinterpret_cast<const char*>(blocks[static_cast<std::size_t>(i)]->address);
    CHECK((bytes[0] == i && std::memcmp(bytes, bytes + 1, 4 * compact_MiB - 1) == 0));
  }
  for (Block* block : {blocks[1], blocks[3], blocks[5], blocks[7], wide}) arena.deallocate(block, nullptr);
}

TEST_CASE("memory compact: when pages are refused, those that are there are used", "[memory][compact]") {
  bool refuses = false;
  for (const bool may_move : {true, false}) {
    Arena arena(std::make_unique<ShortBacking>(refuses),
                {.reserve_bytes = 256 * compact_MiB,
                 .compaction = may_move ? Arena::Compaction::when_needed : Arena::Compaction::never});
    std::vector<Block*> blocks;
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(arena.allocate({.bytes = 3 * compact_MiB}));
      std::memset(blocks.back()->address, i, 3 * compact_MiB);
    }
    for (const std::size_t i : {1u, 2u}) arena.deallocate(blocks[i], nullptr);
    CHECK(arena.trim() == 4 * compact_MiB);  // the granules inside of [3, 9) MiB
    for (const std::size_t i : {4u, 6u}) arena.deallocate(blocks[i], nullptr);
    refuses = true;
    const Arena::Statistics before = arena.statistics();
    CHECK_THROWS_AS(arena.allocate({.bytes = 12 * compact_MiB}), OutOfMemory);
    CHECK(arena.statistics() == before);
    if (may_move) {
      // [12, 15) and [18, 21) MiB are free and have pages; block 5 between them gives way.
      Block* const wide = arena.allocate({.bytes = 5 * compact_MiB});
      std::memset(wide->address, 42, 5 * compact_MiB);
      CHECK(arena.statistics().moved_blocks == 1);
      CHECK(arena.statistics().committed_bytes == before.committed_bytes);
      arena.deallocate(wide, nullptr);
    } else {
      CHECK_THROWS_AS(arena.allocate({.bytes = 5 * compact_MiB}), OutOfMemory);
    }
    for (const int i : {0, 3, 5, 7}) {
      const auto* bytes = reinterpret_cast<const char*>(blocks[static_cast<std::size_t>(i)]->address);
      CHECK((bytes[0] == i && std::memcmp(bytes, bytes + 1, 3 * compact_MiB - 1) == 0));
      arena.deallocate(blocks[static_cast<std::size_t>(i)], nullptr);
    }
    refuses = false;
  }
}

TEST_CASE("memory compact: frozen, where the system refuses pages", "[memory][compact]") {
  bool refuses = false;
  Arena arena(std::make_unique<ShortBacking>(refuses), {.reserve_bytes = 256 * compact_MiB});
  std::vector<Block*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(arena.allocate({.bytes = 3 * compact_MiB}));
  for (const std::size_t i : {1u, 3u}) arena.deallocate(blocks[i], nullptr);
  refuses = true;
  const std::byte* const address = blocks[2]->address;
  {
    const Arena::Freeze freeze(arena);
    CHECK_THROWS_AS(arena.allocate({.bytes = 6 * compact_MiB}), OutOfMemory);
    CHECK(blocks[2]->address == address);
    CHECK(arena.statistics().moved_blocks == 0);
  }
  Block* const wide = arena.allocate({.bytes = 6 * compact_MiB});
  CHECK(arena.statistics().moved_blocks == 1);
  for (Block* block : {blocks[0], blocks[2], blocks[4], wide}) arena.deallocate(block, nullptr);
}
