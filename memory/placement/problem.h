#pragma once
// A placement problem in the form that the stages of the search work on. Internal to memory/placement.
//
// Policy
// - Time is cut into sections: the moments at which the set of live buffers is largest, i.e. is no part of a
//   neighbour's. Two buffers overlap in time exactly when they share a section, so nothing else of time is kept.
// - A problem is connected: time is cut beforehand where no buffer crosses.
//
// Terms
//   item      a buffer: its sections [lower, upper), its size and alignment in bytes
//   order     a sequence of all items; a greedy stage places them one after the other

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
  std::int64_t area() const noexcept { return size * (upper - lower); }
};

struct Problem {
  std::vector<Item> items;
  std::vector<std::size_t> buffers;  // the buffer that each item stands for
  std::int32_t sections = 0;
  std::int64_t load = 0;
};

/// Offsets by item, and the height that they reach.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t height = 0;
};

inline std::int64_t align_up(std::int64_t offset, std::int64_t alignment) noexcept {
  return (offset + alignment - 1) & ~(alignment - 1);
}

/// Cuts the buffers' time into connected problems, in order of time. Every buffer is in exactly one.
std::vector<Problem> split(std::span<const Buffer> buffers, std::size_t unit);

/// What a search may still spend. Counts nodes; looks at the clock every so many of them.
class Budget {
 public:
  /// `node_limit` 0: no bound.
  Budget(double seconds, std::uint64_t node_limit);

  /// Takes `nodes` and tells whether there was something left. Once spent, it stays spent.
  bool spend(std::uint64_t nodes) noexcept;
  bool is_spent() const noexcept { return is_spent_; }
  std::uint64_t nodes() const noexcept { return nodes_; }

  /// A budget of its own with this fraction of what is left; `charge` takes its nodes from this one.
  Budget share(double fraction) const;
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

/// Sequences in which items are placed, largest first: by size, by area (size x sections), by length (sections), by the
/// largest load over their sections and then area or length; and by the time at which they begin.
enum class Order : std::uint8_t { size, area, length, load_area, load_length, time };
inline constexpr Order all_orders[] = {Order::size,      Order::area,        Order::length,
                                       Order::load_area, Order::load_length, Order::time};
std::vector<std::int32_t> make_order(const Problem& problem, Order order);

/// How a greedy stage chooses among the gaps that fit: the lowest, or the smallest.
enum class Fit : std::uint8_t { lowest, tightest };

/// What a layout may cost to be of use. Placing ends where it is passed.
struct Bound {
  std::int64_t height = std::numeric_limits<std::int64_t>::max();  ///< of the layout
  std::int64_t target = 0;
  std::int64_t excess = std::numeric_limits<std::int64_t>::max();  ///< bytes that items stand above `target`, summed
};

/// Places the items one by one in `order`. False, and the layout is not complete, when the bound is passed.
bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, const Bound& bound,
                    Layout& layout);

/// The best of all orders and fits, or the first that reaches `target`, with the order and fit that gave it. At least
/// one is tried.
struct GreedyResult {
  Layout layout;
  std::vector<std::int32_t> order;
  Fit fit = Fit::lowest;
};
GreedyResult place_greedily(const Problem& problem, std::int64_t target, Budget& budget);

// ---- improvement

/// Local search over orders: what stands too high moves to the front. Ends at `target`, after `rounds`, or when the
/// budget is spent. Returns the best layout found, which is no higher than `start`.
Layout improve(const Problem& problem, const GreedyResult& start, std::int64_t target, std::uint64_t rounds,
               Budget& budget);

// ---- exact

enum class Verdict : std::uint8_t { found, impossible, unknown };

/// Looks for a layout no higher than `capacity` until one is found, all are excluded, or the budget is spent. `layout`
/// changes only when one is found.
Verdict search(const Problem& problem, std::int64_t capacity, Budget& budget, Layout& layout);

}  // namespace thimble::memory::packing
