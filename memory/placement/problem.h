#pragma once
// A placement problem as the stages of the search read it. Internal to memory/placement.
//
// Policy
// - Time is cut into sections: the moments at which the set of live buffers is maximal, not a subset of a neighbour's.
//   Two buffers overlap in time exactly when they share a section, so nothing else of time is kept.
// - A problem is connected: time is cut beforehand where no buffer crosses.
//
// Terms
//   item      a buffer: its sections [lower, upper), its size and alignment in bytes, the length of its lifetime
//   order     a sequence of all items, in which the greedy stage places them

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <thimble/memory/placement/placement.h>

namespace thimble::memory::packing {

struct Item {
  std::int32_t lower, upper;
  std::int64_t size;
  std::int64_t alignment;  // a multiple of the unit
  double length;           // of the lifetime, in the buffers' time; only ranks items
  double area() const noexcept { return static_cast<double>(size) * length; }
};

struct Problem {
  std::vector<Item> items;
  std::vector<std::size_t> buffers;  // the buffer of each item
  std::int32_t sections = 0;
  std::int64_t load = 0;
};

/// Offsets by item, and their height.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t height = 0;
};

inline std::int64_t align_up(std::int64_t offset, std::int64_t alignment) noexcept {
  return (offset + alignment - 1) & ~(alignment - 1);
}

/// Cuts the buffers' time into connected problems, in order of time. Every buffer is in exactly one.
std::vector<Problem> split(std::span<const Buffer> buffers, std::size_t unit);

/// A search's remaining work. Counts nodes, and reads the clock every few nodes.
class Budget {
 public:
  /// `node_limit` 0 is unbounded.
  Budget(double seconds, std::uint64_t node_limit);

  /// Takes `nodes`. False once the budget is spent; it then stays spent.
  bool spend(std::uint64_t nodes) noexcept;
  bool is_spent() const noexcept { return is_spent_; }
  std::uint64_t nodes() const noexcept { return nodes_; }

  /// A separate budget with this fraction of the rest, and at most `most_nodes` unless that is 0. `charge` takes its
  /// nodes from this budget.
  Budget share(double fraction, std::uint64_t most_nodes = 0) const;
  void charge(const Budget& part) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
  std::uint64_t node_limit_;
  std::uint64_t nodes_ = 0;
  std::uint64_t next_look_ = 0;
  bool is_spent_ = false;
};

// ---- greedy

/// Sequences in which items are placed: largest first by size, area (size x length), length, or the largest load of
/// their sections and then area or length; or by the time at which they begin.
enum class Order : std::uint8_t { size, area, length, load_area, load_length, time };
inline constexpr Order all_orders[] = {Order::size,   Order::load_length, Order::area,
                                       Order::length, Order::load_area,   Order::time};
std::vector<std::int32_t> make_order(const Problem& problem, Order order);

/// Items with greater ranks come first in `order`. `load` is the largest load of the item's sections.
using Rank = std::array<double, 3>;
Rank rank_of(const Item& item, Order order, std::int64_t load) noexcept;
std::vector<std::int64_t> loads_of(const Problem& problem);  ///< by item, the largest load of its sections

/// The greedy stage's choice among the gaps that fit: the lowest or the smallest.
enum class Fit : std::uint8_t { lowest, tightest };

/// Places the items in `order`. False, with an incomplete layout, if one ends above `most_height`.
bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, std::int64_t most_height,
                    Layout& layout);

/// The best layout of all orders and fits, or the first no higher than `target`. Tries at least one.
Layout place_greedily(const Problem& problem, std::int64_t target, Budget& budget);

// ---- improvement

/// Guided ejection search (Nagata and Braysy, "A powerful route minimization heuristic", 2009) for a layout at most
/// `target` high, then for heights between it and `start`: an item that ends too high goes where the items in its way
/// are cheapest to eject, the ejected items do the same, and each ejection raises the item's price. Ends at `target`,
/// after work proportional to the items near the peak, or when the budget is spent. Returns the best layout found, no
/// higher than `start`.
Layout improve(const Problem& problem, const Layout& start, std::int64_t target, Budget& budget);

// ---- exact

enum class Verdict : std::uint8_t { found, impossible, unknown };

/// Searches for a layout no higher than `capacity` until one is found, all are excluded, or the budget is spent. Writes
/// `layout` only when one is found.
Verdict search(const Problem& problem, std::int64_t capacity, Budget& budget, Layout& layout);

}  // namespace thimble::memory::packing
