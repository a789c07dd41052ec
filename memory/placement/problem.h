#pragma once
// A placement problem in the form for the stages of the search. Internal to memory/placement.
//
// Policy
// - Time is cut into sections: the moments at which the set of live buffers is largest, i.e. not a subset of a
//   neighbour's. Two buffers overlap in time exactly when they share a section, so nothing else of time is kept.
// - A problem is connected: time is cut beforehand where no buffer crosses.
//
// Terms
//   item      a buffer: its sections [lower, upper), its size and alignment in bytes, the length of its lifetime
//   order     a sequence of all items; a greedy stage places them one after the other

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
  double length;           // of the lifetime, in time: only ranks items
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

/// A search's remaining work. Counts nodes; reads the clock once every so many of them.
class Budget {
 public:
  /// `node_limit` 0 is unbounded.
  Budget(double seconds, std::uint64_t node_limit);

  /// Takes `nodes` and tells whether there was something left. Once spent, it stays spent.
  bool spend(std::uint64_t nodes) noexcept;
  bool is_spent() const noexcept { return is_spent_; }
  std::uint64_t nodes() const noexcept { return nodes_; }

  /// A separate budget with this fraction of the rest and at most `most_nodes`, unless that is 0; `charge` takes its
  /// nodes from this one.
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

/// Sequences in which items are placed, largest first: by size, by area (size x length), by length, by the largest load
/// over their sections and then area or length; and by the time at which they begin.
enum class Order : std::uint8_t { size, area, length, load_area, load_length, time };
inline constexpr Order all_orders[] = {Order::size,   Order::load_length, Order::area,
                                       Order::length, Order::load_area,   Order::time};
std::vector<std::int32_t> make_order(const Problem& problem, Order order);

/// An item comes before another in `order` when its rank is greater. `load`: the largest one over its sections.
using Rank = std::array<double, 3>;
Rank rank_of(const Item& item, Order order, std::int64_t load) noexcept;

/// How a greedy stage chooses among the gaps that fit: the lowest, or the smallest.
enum class Fit : std::uint8_t { lowest, tightest };

/// Places the items one by one in `order`. False, with an incomplete layout, above `most_height`.
bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, std::int64_t most_height,
                    Layout& layout);

/// The best of all orders and fits, or the first that reaches `target`. At least one is tried.
Layout place_greedily(const Problem& problem, std::int64_t target, Budget& budget);

// ---- improvement

/// Local search over layouts at most `target` high, then over higher ones below `start`: an item that ends too high is
/// placed where the items in its way are cheapest to eject, and these are placed likewise; each ejection raises a
/// price (guided ejection search: Nagata and Braysy, "A powerful route minimization heuristic", 2009). Ends at
/// `target`, after work in proportion to the items, or when the budget is spent. Returns the best layout found, no
/// higher than `start`.
Layout improve(const Problem& problem, const Layout& start, std::int64_t target, Budget& budget);

// ---- exact

enum class Verdict : std::uint8_t { found, impossible, unknown };

/// Searches for a layout no higher than `capacity` until one is found, all are excluded, or the budget is spent.
/// `layout` changes only when one is found.
Verdict search(const Problem& problem, std::int64_t capacity, Budget& budget, Layout& layout);

}  // namespace thimble::memory::packing
