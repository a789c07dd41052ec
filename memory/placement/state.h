#pragma once
// The state of an exact search: the placed items, and bounds on the others. Internal to memory/placement.
//
// Policy
// - The search considers only settled placements, in which no item can move to a lower free place. Some optimal
//   placement is settled: move items down until none can. In a settled placement each item is at 0 or on another's end.
// - An item is placed only when no open item that overlaps it in time can go lower. These are then all above it, so
//   placing decides the order of neighbours, and nothing about items far away in time.
// - The alternative to placing an item at its bound is to raise it: it will be on an item that is still open, and some
//   item must reach into the hole below it, or the placement would not be settled.
// - Changes are undone in reverse order; nothing is copied.
//
// Terms
//   open        not placed yet
//   floor       of an item: the lowest offset above all placed items that overlap it
//   bound       of an item: a lower bound on its offset in all settled placements from here; at least its floor
//   raised      decided not to be on its floor
//   slack       of a section: capacity - lowest bound - bytes of open items; negative at a dead end
//   twin        an item with the same lifetime, size and alignment; the earlier twin is always lower
//
// Example: A [0, 2) and C [2, 4) of 2 bytes, B [1, 3) of 1 byte, capacity 3. Section 0 has A and B, section 1 has B and
// C; the slack of both is 3 - 0 - 3 = 0. place(A) puts A at 0 and raises the bound of B to 2; place(C) puts C at 0, and
// B goes to 2: height 3, the load. In the other branch, raise(A) puts A on B: B at 0, A and C at 1.

#include <cstdint>
#include <vector>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {

class State {
 public:
  State(const Problem& problem, std::int64_t capacity);

  struct Section {
    std::int64_t left = 0;        // bytes of open items
    std::int64_t lowest = 0;      // least bound of open items
    std::int32_t candidates = 0;  // open items that may be the lowest: the rest fits above their bound
    std::int32_t open = 0;        // number of open items
  };

  /// Places an open item at its bound, which is the least among the open items that overlap it. False when the
  /// placement would not be settled.
  bool place(std::int32_t item);

  /// Decides that an open item is on another open one. False without such an item.
  bool raise(std::int32_t item);

  /// Updates the bounds of the open items `items` and checks all changed sections. False at a dead end; then only undo
  /// may follow.
  bool propagate(std::span<const std::int32_t> items);

  /// The number of changes so far, to which undo returns.
  struct Mark {
    std::size_t items, sections, placed;
  };
  Mark mark() const noexcept { return {item_trail_.size(), section_trail_.size(), placed_trail_.size()}; }
  void undo(const Mark& mark) noexcept;

  std::int64_t capacity() const noexcept { return capacity_; }
  const Item& item(std::int32_t i) const noexcept { return items_[static_cast<std::size_t>(i)]; }
  std::int64_t bound(std::int32_t i) const noexcept { return bounds_[static_cast<std::size_t>(i)]; }
  bool is_placed(std::int32_t i) const noexcept { return nodes_[static_cast<std::size_t>(i)].is_placed; }
  /// A hash of an open item and the decisions about it.
  std::uint64_t fingerprint(std::int32_t i) const noexcept { return nodes_[static_cast<std::size_t>(i)].fingerprint; }
  const Section& section(std::int32_t s) const noexcept { return sections_[static_cast<std::size_t>(s)]; }
  std::int64_t slack(std::int32_t s) const noexcept { return capacity_ - section(s).lowest - section(s).left; }
  /// Open items of a section, in unspecified order.
  std::span<const std::int32_t> open_items(std::int32_t s) const noexcept {
    const auto at = static_cast<std::size_t>(s);
    return {live_.data() + live_begin_[at], static_cast<std::size_t>(sections_[at].open)};
  }
  /// Items that overlap item i in time, placed or not.
  std::span<const std::int32_t> neighbours(std::int32_t i) const noexcept {
    const auto at = static_cast<std::size_t>(i);
    return {neighbours_.data() + neighbours_begin_[at], neighbours_begin_[at + 1] - neighbours_begin_[at]};
  }
  /// Number of open items that live in section s - 1 and in s.
  std::int32_t crossing(std::int32_t s) const noexcept { return crossing_[static_cast<std::size_t>(s)]; }

  /// The bounds as offsets; a placed item's bound is its offset.
  Layout layout() const;

  /// Twice the number of overlapping pairs of items, to which a search's memory is proportional.
  static std::uint64_t count_neighbours(const Problem& problem);

 private:
  struct Node {
    std::int64_t floor = 0;
    std::uint64_t fingerprint = 0;
    std::int32_t earlier_twin = -1;
    bool is_raised = false;
    bool is_placed = false;
  };

  void find_neighbours();
  void find_twins();
  void change(std::int32_t item, std::int64_t floor, std::int64_t bound, bool is_raised);
  void touch(std::int32_t first, std::int32_t end);
  bool has_other_in_hole(std::int32_t item) const noexcept;
  bool propagate_bounds(std::span<const std::int32_t> items);
  bool check_section(std::int32_t s);
  void sort_open_items(std::int32_t s);
  bool fits_in_turn(std::int32_t s);

  std::int64_t capacity_;
  std::vector<Item> items_;
  std::vector<std::int64_t> bounds_;  // separate from nodes_, because it is read most
  std::vector<Node> nodes_;
  std::vector<Section> sections_;
  std::vector<std::int32_t> crossing_;
  std::vector<std::int32_t> live_;  // items by section, the open ones first
  std::vector<std::size_t> live_begin_;
  std::vector<std::int32_t> neighbours_;
  std::vector<std::size_t> neighbours_begin_;

  std::vector<std::int32_t> touched_;  // sections that changed since the last propagate
  std::vector<char> is_touched_;

  struct Change {
    std::int32_t item;
    std::int64_t bound;
    Node node;
  };
  std::vector<Change> item_trail_;
  std::vector<std::pair<std::int32_t, Section>> section_trail_;
  std::vector<std::int32_t> placed_trail_;
};

}  // namespace thimble::memory::packing
