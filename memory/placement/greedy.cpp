// Greedy placement: items one by one, each into a gap between the placed ones.

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {
namespace greedy_detail {

/// A placed item.
struct Shelf {
  std::int32_t lower, upper;
  std::int64_t offset, end;
};

/// Offset of the gap for `item`.
std::int64_t find_gap(const std::vector<Shelf>& shelves, const Item& item, Fit fit) {
  std::int64_t at = 0;  // lowest offset above all visited shelves
  std::int64_t best_offset = -1, best_room = std::numeric_limits<std::int64_t>::max();
  for (const Shelf& shelf : shelves) {
    if (shelf.upper <= item.lower || shelf.lower >= item.upper || shelf.end <= at) continue;
    if (shelf.offset - at >= item.size) {
      if (fit == Fit::lowest) return at;
      if (shelf.offset - at < best_room) {
        best_room = shelf.offset - at;
        best_offset = at;
      }
    }
    at = align_up(shelf.end, item.alignment);
  }
  return best_offset < 0 ? at : best_offset;
}

/// The shelves, by ascending offset, in lists of a range of sections each: a short-lived item among very many examines
/// only its contemporaries. Few items have one list.
class Shelves {
 public:
  explicit Shelves(const Problem& problem) {
    constexpr std::size_t most_in_one_list = 8192, of_a_list = 256;
    const std::size_t items = problem.items.size(), lists = items <= most_in_one_list ? 1 : items / of_a_list;
    width_ = problem.sections / static_cast<std::int32_t>(lists) + 1;
    lists_.resize(static_cast<std::size_t>((problem.sections - 1) / width_) + 1);
  }

  std::int64_t find_gap(const Item& item, Fit fit) {
    const std::size_t first = list_of(item.lower), last = list_of(item.upper - 1);
    if (first == last) return greedy_detail::find_gap(lists_[first], item, fit);
    seen_.clear();
    for (std::size_t list = first; list <= last; ++list) {
      for (const Shelf& shelf : lists_[list]) {
        const bool is_first = list == std::max(first, list_of(shelf.lower));
        if (is_first && shelf.upper > item.lower && shelf.lower < item.upper) seen_.push_back(shelf);
      }
    }
    std::sort(seen_.begin(), seen_.end(), [](const Shelf& a, const Shelf& b) { return a.offset < b.offset; });
    return greedy_detail::find_gap(seen_, item, fit);
  }

  void add(const Shelf& shelf) {
    for (std::size_t list = list_of(shelf.lower); list <= list_of(shelf.upper - 1); ++list) {
      const auto above = std::lower_bound(lists_[list].begin(), lists_[list].end(), shelf.offset,
                                          [](const Shelf& s, std::int64_t offset) { return s.offset < offset; });
      lists_[list].insert(above, shelf);
    }
  }

 private:
  std::size_t list_of(std::int32_t section) const { return static_cast<std::size_t>(section / width_); }

  std::int32_t width_;                     // sections of a list
  std::vector<std::vector<Shelf>> lists_;  // a shelf is in the list of each of its sections
  std::vector<Shelf> seen_;                // by an item that lives in several lists
};

/// Largest sum of sizes over the sections of each item.
std::vector<std::int64_t> loads_of(const Problem& problem) {
  // levels[k][s]: the largest load of the sections [s, s + 2^k).
  std::vector<std::vector<std::int64_t>> levels(1);
  levels[0].resize(static_cast<std::size_t>(problem.sections) + 1, 0);
  for (const Item& item : problem.items) {
    levels[0][static_cast<std::size_t>(item.lower)] += item.size;
    levels[0][static_cast<std::size_t>(item.upper)] -= item.size;
  }
  std::partial_sum(levels[0].begin(), levels[0].end(), levels[0].begin());
  levels[0].pop_back();
  for (std::size_t half = 1; 2 * half <= levels[0].size(); half *= 2) {
    const std::vector<std::int64_t>& last = levels.back();
    std::vector<std::int64_t> next(last.size() - half);
    for (std::size_t s = 0; s < next.size(); ++s) next[s] = std::max(last[s], last[s + half]);
    levels.push_back(std::move(next));
  }
  std::vector<std::int64_t> loads;
  loads.reserve(problem.items.size());
  for (const Item& item : problem.items) {
    const auto width = static_cast<std::size_t>(item.upper - item.lower);
    const std::vector<std::int64_t>& level = levels[static_cast<std::size_t>(std::bit_width(width)) - 1];
    loads.push_back(std::max(level[static_cast<std::size_t>(item.lower)],
                             level[static_cast<std::size_t>(item.upper) - std::bit_floor(width)]));
  }
  return loads;
}

}  // namespace greedy_detail

Rank rank_of(const Item& item, Order order, std::int64_t load) noexcept {
  const auto size = static_cast<double>(item.size), loaded = static_cast<double>(load);
  switch (order) {
    case Order::size:
      return {size, item.length, 0};
    case Order::area:
      return {item.area(), item.length, 0};
    case Order::length:
      return {item.length, item.area(), loaded};
    case Order::load_area:
      return {loaded, item.area(), item.length};
    case Order::load_length:
      return {loaded, item.length, item.area()};
    case Order::time:
      break;
  }
  return {-static_cast<double>(item.lower), item.length, size};
}

std::vector<std::int32_t> make_order(const Problem& problem, Order order) {
  const std::vector<std::int64_t> loads = greedy_detail::loads_of(problem);
  std::vector<Rank> ranks;
  ranks.reserve(problem.items.size());
  for (std::size_t i = 0; i < problem.items.size(); ++i) ranks.push_back(rank_of(problem.items[i], order, loads[i]));
  std::vector<std::int32_t> result(problem.items.size());
  std::iota(result.begin(), result.end(), 0);
  std::sort(result.begin(), result.end(), [&](std::int32_t a, std::int32_t b) {
    const Rank& rank_a = ranks[static_cast<std::size_t>(a)];
    const Rank& rank_b = ranks[static_cast<std::size_t>(b)];
    return rank_a != rank_b ? rank_a > rank_b : a < b;
  });
  return result;
}

bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, const Bound& bound,
                    Layout& layout) {
  layout.offsets.resize(problem.items.size());
  layout.height = 0;
  std::int64_t excess = 0;
  greedy_detail::Shelves shelves(problem);
  for (const std::int32_t i : order) {
    const Item& item = problem.items[static_cast<std::size_t>(i)];
    const std::int64_t offset = shelves.find_gap(item, fit), end = offset + item.size;
    shelves.add({item.lower, item.upper, offset, end});
    layout.offsets[static_cast<std::size_t>(i)] = offset;
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
