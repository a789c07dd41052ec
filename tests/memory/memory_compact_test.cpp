// Compaction: which blocks slide, which stay, and how threads wait for each other.

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/memory/arena/arena.h>
#include <thimble/memory/arena/compact.h>
#include <thimble/memory/summary.h>

#include "support/catch.h"

namespace {

using thimble::OutOfMemory;
using thimble::memory::Arena;
using thimble::memory::Backing;
using thimble::memory::Block;
using thimble::memory::CompactionWindow;
using thimble::memory::Device;
using thimble::memory::Tlsf;

constexpr std::size_t compact_MiB = std::size_t{1} << 20;
constexpr std::size_t compact_unit = 64;

/// A picture of the arena, one character per 64 bytes: the name of the block there, or '.' for free, as in "aa.b".
class Map {
 public:
  explicit Map(std::size_t units) : text_(units, '.') {}
  void draw(const Arena& arena, const Block* block, char name) {
    const auto first = static_cast<std::size_t>(block->address - arena.base()) / compact_unit;
    for (std::size_t i = 0; i < (block->bytes + compact_unit - 1) / compact_unit; ++i) text_.at(first + i) = name;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Lays blocks out as in a picture: allocates every run of units of a 2 MiB arena, then frees the '.' runs.
class Layout {
 public:
  Layout(Device device, const std::string& picture, Arena::Options options = {}) {
    options.capacity_bytes = 2 * compact_MiB;
    arena = std::make_unique<Arena>(thimble::memory::make_backing(device), options);
    units_ = picture.size();
    std::vector<Block*> holes;
    for (std::size_t i = 0, end = 0; i < units_; i = end) {
      end = std::min(picture.find_first_not_of(picture[i], i), units_);
      Block* const block = arena->allocate({.bytes = (end - i) * compact_unit});
      if (picture[i] == '.') {
        holes.push_back(block);
      } else {
        names_.emplace_back(picture[i], block);
        if (!device.is_dry) std::memset(block->address, picture[i], block->bytes);
      }
    }
    rest_ = arena->allocate({.bytes = 2 * compact_MiB - units_ * compact_unit});
    rest_->pins = 1;
    for (Block* hole : holes) arena->deallocate(hole, nullptr);
  }
  ~Layout() {
    for (auto [name, block] : names_) arena->deallocate(block, nullptr);
    rest_->pins = 0;
    arena->deallocate(rest_, nullptr);
  }

  Block* operator[](char name) const {
    for (auto [n, block] : names_) {
      if (n == name) return block;
    }
    return nullptr;
  }
  void add(char name, std::size_t units, std::size_t alignment = compact_unit) {
    Block* const block = arena->allocate({.bytes = units * compact_unit, .alignment = alignment});
    names_.emplace_back(name, block);
    if (!arena->device().is_dry) std::memset(block->address, name, block->bytes);
  }
  std::string picture() const {
    Map map(units_);
    for (auto [name, block] : names_) map.draw(*arena, block, name);
    return map.text();
  }
  bool is_intact() const {
    for (auto [name, block] : names_) {
      const auto* bytes = reinterpret_cast<const char*>(block->address);
      if (bytes[0] != name || std::memcmp(bytes, bytes + 1, block->bytes - 1) != 0) return false;
    }
    return true;
  }

  std::unique_ptr<Arena> arena;

 private:
  std::size_t units_;
  std::vector<std::pair<char, Block*>> names_;
  Block* rest_;
};

/// The fewest bytes to move for a hole of `need` bytes, by trying every window.
std::size_t fewest_bytes(Tlsf& spans, std::size_t need) {
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  if (spans.limit() - spans.height() >= need) return 0;
  for (const Tlsf::Span* from = spans.first(); from != nullptr; from = from->next) {
    std::size_t free = 0, bytes = 0;
    for (const Tlsf::Span* to = from; to != nullptr && (to->is_free || !is_pinned(*to)); to = to->next) {
      if (to->is_free) {
        free += to->size;
      } else if (free > 0) {
        bytes += to->bytes;
      }
      const std::size_t above = to->next == nullptr ? spans.limit() - spans.height() : 0;
      if (free + above >= need) fewest = std::min(fewest, bytes);
    }
  }
  return fewest;
}

}  // namespace

TEST_CASE("memory compact: a request slides as little as makes its hole", "[memory][compact]") {
  struct Row {
    const char* before;
    std::size_t units;
    const char* pinned;
    const char* after;  // the new block is N; "" means refused
    std::size_t moved_units;
  };
  const Row rows[] = {
      {"a.b.c", 2, "", "abNNc", 1},
      {"a..bbbb..c..", 4, "", "a..bbbbcNNNN", 1},
      {"aa.bb.cc.dd.", 4, "", "aabbccddNNNN", 6},
      {"aa.bb.cc.dd.", 5, "", "", 0},
      {"a.b.c.d.", 2, "b", "a.bcNNd.", 1},
      {"a.b.c.d.", 2, "bd", "a.bcNNd.", 1},
      {"a.b.c.", 2, "b", "a.bcNN", 1},
      {"a.b.", 2, "b", "", 0},
      {"..a.b", 3, "", "aNNNb", 1},
      {"...a.b", 3, "", "NNNa.b", 0},
      {".aaaa.b.", 2, "", ".aaaabNN", 1},
  };
  for (const Row& row : rows) {
    for (const Device device : {thimble::cpu, thimble::dry(thimble::cpu)}) {
      INFO(row.before << " + " << row.units << " on " << to_string(device));
      Layout layout(device, row.before);
      for (const char* p = row.pinned; *p != 0; ++p) layout[*p]->pins = 1;
      const std::string before = layout.picture();
      CHECK(before == row.before);
      const Arena::Statistics figures = layout.arena->statistics();
      if (*row.after == 0) {
        CHECK_THROWS_AS(layout.add('N', row.units), OutOfMemory);
        CHECK(layout.picture() == before);
        CHECK(layout.arena->statistics() == figures);
      } else {
        layout.add('N', row.units);
        CHECK(layout.picture() == row.after);
        CHECK(layout.arena->statistics().moved_bytes == row.moved_units * compact_unit);
        CHECK(layout.arena->statistics().compaction_count == (row.moved_units > 0 ? 1 : 0));
      }
      if (device == thimble::cpu) CHECK(layout.is_intact());
      for (const char* p = row.pinned; *p != 0; ++p) layout[*p]->pins = 0;
    }
  }
}

TEST_CASE("memory compact: no other window moves fewer bytes", "[memory][compact]") {
  std::mt19937 random(17);
  std::size_t windows = 0, differences = 0;
  for (int round = 0; round < 300; ++round) {
    Tlsf spans(compact_unit, 400 * compact_unit);
    std::vector<Tlsf::Span*> live;
    for (int i = 0; i < 60; ++i) {
      const Tlsf::Place place = spans.find((1 + random() % 8) * compact_unit, compact_unit);
      if (!place.is_found()) break;
      REQUIRE(spans.ready());
      live.push_back(spans.take(place));
      live.back()->bytes = live.back()->size - random() % compact_unit;
    }
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (random() % 2 == 0) {
        spans.free(live[i]);
      } else if (random() % 8 == 0) {
        live[i]->pins = 1;
      }
    }
    for (std::size_t units = 1; units < 400; units += 7) {
      const CompactionWindow window =
          thimble::memory::cheapest_window(spans, nullptr, units * compact_unit, compact_unit);
      const std::size_t fewest = fewest_bytes(spans, units * compact_unit);
      if (window.is_found() != (fewest != std::numeric_limits<std::size_t>::max())) ++differences;
      if (window.is_found() && window.bytes != fewest) ++differences;
      windows += window.is_found() && window.blocks > 0 ? 1 : 0;
    }
    for (const std::size_t alignment : {1, 2, 8}) {  // largest aligned run of free units after all have slid
      std::vector<bool> is_used(spans.limit() / compact_unit, false);
      std::size_t at = 0, largest = 0;
      for (Tlsf::Span* span = spans.first(); span != nullptr; span = span->next) {
        if (span->is_free) continue;
        if (span->pins > 0) at = span->offset / compact_unit;
        for (std::size_t i = 0; i < span->size / compact_unit; ++i) is_used[at++] = true;
      }
      for (std::size_t begin = 0; begin < is_used.size(); begin += alignment) {
        std::size_t end = begin;
        while (end < is_used.size() && !is_used[end]) ++end;
        largest = std::max(largest, end - begin);
      }
      const std::size_t found = thimble::memory::bytes_after_sliding_all(spans, alignment * compact_unit);
      differences += found == largest * compact_unit ? 0 : 1;
    }
    for (Tlsf::Span* span = spans.first(); span != nullptr; span = span->next) span->pins = 0;
  }
  CHECK(windows > 1000);
  CHECK(differences == 0);
}

TEST_CASE("memory compact: on demand, and at a safe point", "[memory][compact]") {
  for (const Device device : {thimble::cpu, thimble::dry(thimble::cpu)}) {
    INFO(to_string(device));
    Layout layout(device, "a.bb..c.dd..", {.poison = true, .tolerated_fragmentation = 0.001});
    const std::byte* const left = layout['c']->address;
    // 6 of 32768 units are holes, below the tolerance.
    CHECK(layout.arena->safe_point() == 0);
    CHECK(layout.arena->compact() == 5 * compact_unit);
    CHECK(layout.picture() == "abbcdd......");
    CHECK(layout.arena->compact() == 0);
    const Arena::Statistics figures = layout.arena->statistics();
    CHECK(figures.compaction_count == 1);
    CHECK(figures.moved_blocks == 3);
    CHECK(figures.moved_bytes == 5 * compact_unit);
    if (device == thimble::cpu) {
      CHECK(layout.is_intact());
      CHECK(std::to_integer<int>(*left) == 0xFF);  // poison where the block was
    }
  }
  Layout holes(thimble::cpu, "a.b", {.tolerated_fragmentation = 0});
  CHECK(holes.arena->safe_point() == compact_unit);
  CHECK(holes.arena->safe_point() == 0);
  Layout tolerated(thimble::cpu, "a.b", {.tolerated_fragmentation = 1.0 / 32768});  // tolerates exactly that hole
  CHECK(tolerated.arena->safe_point() == 0);
  bool was_refused = false;
  thimble::launch(thimble::cpu, [&](const thimble::Addresses&) {
    for (const bool is_safe_point : {false, true}) {
      try {
        is_safe_point ? holes.arena->safe_point() : holes.arena->compact();
        was_refused = false;
        break;
      } catch (const thimble::Error&) {
        was_refused = true;
      }
    }
  });
  CHECK(was_refused);
}

TEST_CASE("memory compact: never, and before every allocation", "[memory][compact]") {
  Layout never(thimble::cpu, "a.b.c", {.compaction = Arena::Compaction::never});
  CHECK_THROWS_WITH(never.add('N', 2),
                    Catch::Contains("0 compactions moved 0 blocks, 0 B, in 0.00 ms, switched off for requests") &&
                        Catch::Contains("1 blocks of"));  // the pinned remainder of the layout
  CHECK(never.arena->compact() == 2 * compact_unit);
  never.add('N', 2);
  CHECK(never.picture() == "abcNN");

  Layout always(thimble::cpu, "a.b.c..", {.compaction = Arena::Compaction::before_every_allocation});
  always.add('N', 1);
  CHECK(always.picture() == "abcN...");
  CHECK(always.is_intact());
  const std::string text = thimble::memory::to_string(always.arena->statistics());
  INFO(text);
  CHECK(text.find("1 compactions moved 2 blocks, 128 B, in") != std::string::npos);
}

TEST_CASE("memory compact: alignment is kept", "[memory][compact]") {
  for (const Device device : {thimble::cpu, thimble::dry(thimble::cuda())}) {
    INFO(to_string(device));
    const Arena::Options options{.capacity_bytes = 4 * compact_MiB};
    Arena arena(thimble::memory::make_backing(device), options);
    std::mt19937 random(3);
    std::size_t errors = 0, refusals = 0;
    struct Live {
      Block* block;
      std::size_t alignment;
    };
    std::vector<Live> live;
    for (int i = 0; i < 20000; ++i) {
      if (random() % 100 < 55 || live.empty()) {
        const std::size_t alignment = std::size_t{64} << random() % 10;
        try {
          live.push_back({arena.allocate({.bytes = 1 + random() % 100000, .alignment = alignment}), alignment});
        } catch (const OutOfMemory&) {
          ++refusals;
        }
        for (const Live& one : live) {
          errors += static_cast<std::size_t>(one.block->address - arena.base()) % one.alignment == 0 ? 0 : 1;
        }
      } else {
        const std::size_t which = random() % live.size();
        arena.deallocate(live[which].block, nullptr);
        live[which] = live.back();
        live.pop_back();
      }
    }
    CHECK(errors == 0);
    CHECK(refusals > 0);
    CHECK(arena.statistics().moved_blocks > 1000);
    for (const Live& one : live) arena.deallocate(one.block, nullptr);
  }
}

TEST_CASE("memory compact: while frozen nothing is moved, however full it is", "[memory][compact]") {
  Layout layout(thimble::cpu, "a.b.c");
  {
    const Arena::Freeze freeze(*layout.arena);
    const Arena::Freeze nested(*layout.arena);
    CHECK_THROWS_AS(layout.add('N', 2), OutOfMemory);
    CHECK(layout.arena->compact() == 0);
    CHECK(layout.arena->safe_point() == 0);
    CHECK(layout.picture() == "a.b.c");
    layout.add('S', 1);  // a request that fits without moving succeeds
    CHECK(layout.picture() == "aSb.c");
  }
  layout.add('N', 1);
  CHECK(layout.picture() == "aSbNc");

  Layout freed(thimble::cpu, "a.b.c");
  { const Arena::Freeze freeze(*freed.arena); }
  freed.add('N', 2);
  CHECK(freed.picture() == "abNNc");
  CHECK(freed.is_intact());
}

// ---- Compaction as pages come and go, or the system refuses them.

namespace {

using thimble::OutOfMemory;
using thimble::memory::Arena;
using thimble::memory::Backing;
using thimble::memory::Block;
using thimble::memory::CompactionWindow;
using thimble::memory::Device;

/// Counts pages over host memory, and refuses them while told to.
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
  void move(std::size_t from, std::size_t to, std::size_t bytes, thimble::memory::Stream stream) noexcept override {
    real_->move(from, to, bytes, stream);
  }
  void fill(std::size_t offset, std::size_t bytes, std::byte value, thimble::memory::Stream stream) noexcept override {
    real_->fill(offset, bytes, value, stream);
  }

 private:
  const bool& refuses_;
  std::unique_ptr<Backing> real_ = thimble::memory::make_cpu_backing();
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
        const thimble::memory::PageMove move = thimble::memory::page_move(from, to, size, granule);
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
          thimble::memory::PageMap map{granule, std::vector<std::uint8_t>(granules), 0};
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
  Arena arena(thimble::memory::make_cpu_backing(), {.capacity_bytes = 32 * compact_MiB});
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
    CHECK(arena.trim() == 4 * compact_MiB);  // the granules within [3, 9) MiB
    for (const std::size_t i : {4u, 6u}) arena.deallocate(blocks[i], nullptr);
    refuses = true;
    const Arena::Statistics before = arena.statistics();
    CHECK_THROWS_AS(arena.allocate({.bytes = 12 * compact_MiB}), OutOfMemory);
    CHECK(arena.statistics() == before);
    if (may_move) {
      // [12, 15) and [18, 21) MiB are free with pages; block 5 between them moves.
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
