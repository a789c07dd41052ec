// An arena against a std::map: millions of random requests, frees, pins, trims and compactions.

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/arena/arena.h>

#include "support/catch.h"

namespace {

using thimble::OutOfMemory;
using thimble::memory::Arena;
using thimble::memory::Block;
using thimble::memory::Device;

struct ArenaRow {
  Device device;
  std::uint64_t operations;
  std::size_t capacity;  // bytes
  std::size_t population;
  std::size_t largest_request;  // bytes
  Arena::Compaction compaction = Arena::Compaction::when_needed;
};

/// Counts of errors and of operations.
struct ArenaTally {
  std::uint64_t overlaps = 0, wrong_places = 0, lost_contents = 0, wrong_refusals = 0, wrong_figures = 0;
  std::uint64_t allocations = 0, refusals = 0, compactions = 0, moved_blocks = 0, pins = 0;

  std::uint64_t errors() const { return overlaps + wrong_places + lost_contents + wrong_refusals + wrong_figures; }
};

/// The arena with a slow, obvious model of its blocks.
class ArenaModel {
 public:
  ArenaModel(const ArenaRow& row, std::uint32_t seed)
      : row_(row),
        arena_(thimble::memory::make_backing(row.device),
               {.capacity_bytes = row.capacity, .poison = true, .compaction = row.compaction}),
        unit_(row.device.is_cuda() ? 512 : 64),
        random_(seed) {}

  ~ArenaModel() {
    while (!live_.empty()) free(live_.size() - 1);
    check_figures();
  }
  ArenaModel(const ArenaModel&) = delete;
  ArenaModel& operator=(const ArenaModel&) = delete;

  ArenaTally run() {
    for (std::uint64_t i = 0; i < row_.operations; ++i) {
      const std::uint32_t dice = draw();
      if (dice % 4096 == 0) {
        trim_or_compact(dice >> 12);
      } else if (dice % 64 == 1 && !live_.empty()) {
        turn_pin(dice / 64 % live_.size());
      } else if (live_.empty() || (dice >> 8) % (2 * row_.population) >= live_.size()) {
        allocate();
      } else {
        free(draw() % live_.size());
      }
      if (i % 65536 == 0) check_figures();
    }
    while (!live_.empty()) free(live_.size() - 1);
    check_figures();
    tally_.compactions = arena_.statistics().compaction_count;
    return tally_;
  }

 private:
  struct Live {
    Block* block;
    std::size_t offset, size, alignment;
    unsigned char tag;
  };

  std::uint32_t draw() { return static_cast<std::uint32_t>(random_()); }
  std::size_t offset_of(const Block* block) const { return static_cast<std::size_t>(block->address - arena_.base()); }
  bool is_real() const { return !row_.device.is_dry; }
  std::size_t round_up(std::size_t bytes) const { return (bytes + unit_ - 1) / unit_ * unit_; }

  void allocate() {
    const std::uint32_t dice = draw();
    const std::size_t bytes = 1 + (dice % 16 == 0 ? draw() % row_.largest_request : draw() % 1024);
    const std::size_t alignment = dice / 16 % 16 == 0 ? unit_ << (dice >> 28) % 7 : unit_;
    Live one{nullptr, 0, round_up(bytes), alignment, static_cast<unsigned char>(dice >> 8)};
    try {
      one.block = arena_.allocate({.bytes = bytes, .alignment = alignment});
    } catch (const OutOfMemory&) {
      ++tally_.refusals;
      if (largest_after_sliding(alignment) >= one.size) ++tally_.wrong_refusals;
      return;
    }
    ++tally_.allocations;
    if (has_moved()) follow();
    one.offset = offset_of(one.block);
    if (one.offset % alignment != 0 || one.block->bytes != bytes) ++tally_.wrong_places;
    const auto [at, is_new] = by_offset_.emplace(one.offset, live_.size());
    const bool is_apart = is_new &&
                          (std::next(at) == by_offset_.end() || std::next(at)->first >= one.offset + one.size) &&
                          (at == by_offset_.begin() || end_of(std::prev(at)->second) <= one.offset);
    if (!is_apart || one.offset + one.size > row_.capacity) ++tally_.overlaps;
    if (is_real()) std::memset(one.block->address, one.tag, bytes);
    requested_ += bytes;
    allocated_ += one.size;
    live_.push_back(one);
  }

  void free(std::size_t which) {
    const Live one = live_[which];
    if (!is_intact(one)) ++tally_.lost_contents;
    one.block->pins = 0;
    requested_ -= one.block->bytes;
    allocated_ -= one.size;
    by_offset_.erase(one.offset);
    arena_.deallocate(one.block, nullptr);
    if (which + 1 < live_.size()) {
      live_[which] = live_.back();
      by_offset_[live_[which].offset] = which;
    }
    live_.pop_back();
  }

  void turn_pin(std::size_t which) {
    Block& block = *live_[which].block;
    if (block.pins > 0) {
      block.pins = 0;
    } else if (draw() % 16 == 0) {  // keeps pinned blocks few
      block.pins = 1;
      ++tally_.pins;
    }
  }

  void trim_or_compact(std::uint32_t dice) {
    if (dice % 4 == 0) {
      arena_.trim();
    } else {
      arena_.compact();
      if (has_moved()) follow();
    }
  }

  bool is_intact(const Live& one) const {
    if (!is_real()) return true;
    const auto* bytes = reinterpret_cast<const unsigned char*>(one.block->address);
    return bytes[0] == one.tag && std::memcmp(bytes, bytes + 1, one.block->bytes - 1) == 0;
  }

  std::size_t end_of(std::size_t which) const { return live_[which].offset + live_[which].size; }

  bool has_moved() {
    const std::uint64_t before = std::exchange(tally_.moved_blocks, arena_.statistics().moved_blocks);
    return tally_.moved_blocks != before;
  }

  /// Checks a compaction: blocks slid down in order without overlap, pinned blocks stayed, contents are intact.
  void follow() {
    std::map<std::size_t, std::size_t> moved;
    std::size_t end = 0;
    for (const auto& [before, which] : by_offset_) {
      Live& one = live_[which];
      one.offset = offset_of(one.block);
      if (one.offset > before || one.offset % one.alignment != 0) ++tally_.wrong_places;
      if (one.block->pins > 0 && one.offset != before) ++tally_.wrong_places;
      if (one.offset < end) ++tally_.overlaps;
      if (!is_intact(one)) ++tally_.lost_contents;
      end = one.offset + one.size;
      moved.emplace_hint(moved.end(), one.offset, which);
    }
    by_offset_.swap(moved);
  }

  /// The largest hole after sliding everything; a request that fits there must succeed.
  std::size_t largest_after_sliding(std::size_t alignment) const {
    const auto up = [](std::size_t value, std::size_t to) { return (value + to - 1) / to * to; };
    std::size_t at = 0, largest = 0;
    for (const auto& [offset, which] : by_offset_) {
      const Live& one = live_[which];
      const std::size_t next = one.block->pins > 0 ? offset : up(at, one.alignment);
      if (up(at, alignment) < next) largest = std::max(largest, next - up(at, alignment));
      at = next + one.size;
    }
    const std::size_t last = up(at, alignment);
    return last < row_.capacity ? std::max(largest, row_.capacity - last) : largest;
  }

  void check_figures() {
    const Arena::Statistics now = arena_.statistics();
    const std::size_t height = by_offset_.empty() ? 0 : end_of(by_offset_.rbegin()->second);
    const bool is_right = now.requested_bytes == requested_ && now.allocated_bytes == allocated_ &&
                          now.live_blocks == live_.size() && now.height_bytes == height &&
                          now.committed_bytes <= row_.capacity && now.allocation_count == tally_.allocations;
    if (!is_right) ++tally_.wrong_figures;
    const std::vector<Arena::LiveBlock> blocks = arena_.blocks();
    auto expected = by_offset_.begin();
    for (const Arena::LiveBlock& placed : blocks) {
      const bool is_same = expected != by_offset_.end() && placed.offset == expected->first &&
                           placed.block == live_[expected->second].block &&
                           placed.allocated_bytes == live_[expected->second].size;
      if (!is_same) {
        ++tally_.wrong_figures;
        return;
      }
      ++expected;
    }
    if (expected != by_offset_.end()) ++tally_.wrong_figures;
  }

  ArenaRow row_;
  Arena arena_;
  std::size_t unit_;
  std::minstd_rand random_;
  std::vector<Live> live_;
  std::map<std::size_t, std::size_t> by_offset_;  // offset -> index in live_
  std::size_t requested_ = 0, allocated_ = 0;
  ArenaTally tally_;
};

void check_row(const ArenaRow& row, std::uint32_t seed) {
  ArenaTally tally = ArenaModel(row, seed).run();
  INFO(to_string(row.device) << ", capacity " << row.capacity << ", seed " << seed << ": " << tally.overlaps
                             << " overlaps, " << tally.wrong_places << " wrong places, " << tally.lost_contents
                             << " lost contents, " << tally.wrong_refusals << " wrong refusals, " << tally.wrong_figures
                             << " wrong figures; " << tally.compactions << " compactions, " << tally.refusals
                             << " refusals, " << tally.pins << " pins");
  CHECK(tally.errors() == 0);
  CHECK(tally.allocations > row.operations / 3);
  CHECK(tally.pins > 0);
  CHECK(tally.compactions > 0);
  CHECK(tally.moved_blocks >= tally.compactions);
}

constexpr std::size_t model_MiB = std::size_t{1} << 20;

}  // namespace

TEST_CASE("memory model: millions of random operations", "[memory][model]") {
  using thimble::cpu;
  // Roomy arenas exercise the bins; tight arenas refuse and compact all the time.
  const ArenaRow rows[] = {
      {dry(cpu), 6000000, 64 * model_MiB, 30, 100000},
      {dry(cpu), 2000000, 2 * model_MiB, 60, 300000},
      {dry(thimble::cuda()), 1000000, 4 * model_MiB, 40, 300000},
      {cpu, 900000, 4 * model_MiB, 50, 20000},
      {cpu, 100000, 2 * model_MiB, 60, 100000},
  };
  for (const ArenaRow& row : rows) check_row(row, 5);
  check_row({cpu, 20000, 4 * model_MiB, 100, 20000, Arena::Compaction::before_every_allocation}, 6);
}

TEST_CASE("memory model: a hundred million random operations", "[.][memory-long]") {
  using thimble::cpu;
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u}) {
    check_row({dry(cpu), 20000000, 64 * model_MiB, 30, 100000}, seed);
    check_row({cpu, 5000000, 4 * model_MiB, 50, 20000}, seed);
  }
}
