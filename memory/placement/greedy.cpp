// Greedy placement: items one by one, each into a gap between what is placed already.

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {
namespace greedy_detail {

/// What is placed, by ascending offset.
struct Shelf {
  std::int32_t lower, upper;
  std::int64_t offset, end;
};

struct Gap {
  std::int64_t offset;
  std::size_t position;  // of the first shelf at or above the gap
};

Gap find_gap(const std::vector<Shelf>& shelves, const Item& item, Fit fit) {
  constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  std::int64_t at = 0;  // lowest offset above all that was passed
  std::int64_t best_offset = -1, best_room = unbounded;
  for (const Shelf& shelf : shelves) {
    if (shelf.upper <= item.lower || shelf.lower >= item.upper || shelf.end <= at) continue;
    if (shelf.offset - at >= item.size) {
      if (fit == Fit::lowest) {
        best_offset = at;
        break;
      }
      if (shelf.offset - at < best_room) {
        best_room = shelf.offset - at;
        best_offset = at;
      }
    }
    at = align_up(shelf.end, item.alignment);
  }
  if (best_offset < 0) best_offset = at;
  const auto above = std::lower_bound(shelves.begin(), shelves.end(), best_offset,
                                      [](const Shelf& shelf, std::int64_t offset) { return shelf.offset < offset; });
  return {best_offset, static_cast<std::size_t>(above - shelves.begin())};
}

/// Largest sum of sizes over the sections of each item.
std::vector<std::int64_t> loads_of(const Problem& problem) {
  std::vector<std::int64_t> by_section(static_cast<std::size_t>(problem.sections) + 1, 0);
  for (const Item& item : problem.items) {
    by_section[static_cast<std::size_t>(item.lower)] += item.size;
    by_section[static_cast<std::size_t>(item.upper)] -= item.size;
  }
  std::partial_sum(by_section.begin(), by_section.end(), by_section.begin());
  std::vector<std::int64_t> loads;
  loads.reserve(problem.items.size());
  for (const Item& item : problem.items) {
    loads.push_back(*std::max_element(by_section.begin() + item.lower, by_section.begin() + item.upper));
  }
  return loads;
}

using Key = std::array<std::int64_t, 3>;

}  // namespace greedy_detail

std::vector<std::int32_t> make_order(const Problem& problem, Order order) {
  using greedy_detail::Key;
  const bool needs_loads = order == Order::load_area || order == Order::load_length;
  const std::vector<std::int64_t> loads = needs_loads ? greedy_detail::loads_of(problem) : std::vector<std::int64_t>();
  std::vector<Key> keys;
  keys.reserve(problem.items.size());
  for (std::size_t i = 0; i < problem.items.size(); ++i) {
    const Item& item = problem.items[i];
    const std::int64_t length = item.upper - item.lower;
    switch (order) {
      case Order::size:
        keys.push_back({item.size, length, 0});
        break;
      case Order::area:
        keys.push_back({item.area(), length, 0});
        break;
      case Order::length:
        keys.push_back({length, item.area(), 0});
        break;
      case Order::load_area:
        keys.push_back({loads[i], item.area(), length});
        break;
      case Order::load_length:
        keys.push_back({loads[i], length, item.area()});
        break;
      case Order::time:
        keys.push_back({-item.lower, length, item.size});
        break;
    }
  }
  std::vector<std::int32_t> result(problem.items.size());
  std::iota(result.begin(), result.end(), 0);
  std::sort(result.begin(), result.end(), [&](std::int32_t a, std::int32_t b) {
    const Key& key_a = keys[static_cast<std::size_t>(a)];
    const Key& key_b = keys[static_cast<std::size_t>(b)];
    return key_a != key_b ? key_a > key_b : a < b;
  });
  return result;
}

bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, const Bound& bound,
                    Layout& layout) {
  layout.offsets.resize(problem.items.size());
  layout.height = 0;
  std::int64_t excess = 0;
  std::vector<greedy_detail::Shelf> shelves;
  shelves.reserve(problem.items.size());
  for (const std::int32_t i : order) {
    const Item& item = problem.items[static_cast<std::size_t>(i)];
    const greedy_detail::Gap gap = greedy_detail::find_gap(shelves, item, fit);
    const std::int64_t end = gap.offset + item.size;
    shelves.insert(shelves.begin() + static_cast<std::ptrdiff_t>(gap.position),
                   {item.lower, item.upper, gap.offset, end});
    layout.offsets[static_cast<std::size_t>(i)] = gap.offset;
    layout.height = std::max(layout.height, end);
    excess += std::max<std::int64_t>(0, end - bound.target);
    if (layout.height > bound.height || excess > bound.excess) return false;
  }
  return true;
}

GreedyResult place_greedily(const Problem& problem, std::int64_t target, Budget& budget) {
  GreedyResult best;
  for (const Order order : all_orders) {
    const std::vector<std::int32_t> items = make_order(problem, order);
    for (const Fit fit : {Fit::lowest, Fit::tightest}) {
      if (!best.order.empty() && (best.layout.height <= target || !budget.spend(1))) return best;
      Bound bound;
      if (!best.order.empty()) bound.height = best.layout.height - 1;
      Layout layout;
      if (place_in_order(problem, items, fit, bound, layout)) best = {std::move(layout), items, fit};
    }
  }
  return best;
}

}  // namespace thimble::memory::packing
