// Improvement of a greedy placement: local search over the order of placing items.

#include <utility>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {
namespace improve_detail {

/// SplitMix64: the search is the same on every machine.
class Dice {
 public:
  std::size_t below(std::size_t count) noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::size_t>((x ^ (x >> 31)) % count);
  }

 private:
  std::uint64_t state_ = 0;
};

/// Positions in the order of the items that end above `height`.
std::vector<std::size_t> positions_above(const Problem& problem, const std::vector<std::int32_t>& order,
                                         const Layout& layout, std::int64_t height) {
  std::vector<std::size_t> positions;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto i = static_cast<std::size_t>(order[at]);
    if (layout.offsets[i] + problem.items[i].size > height) positions.push_back(at);
  }
  return positions;
}

/// Bytes of all items above `height`, summed: falls before the height itself does.
std::int64_t excess(const Problem& problem, const Layout& layout, std::int64_t height) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < problem.items.size(); ++i) {
    const std::int64_t above = layout.offsets[i] + problem.items[i].size - height;
    if (above > 0) sum += above;
  }
  return sum;
}

}  // namespace improve_detail

Layout improve(const Problem& problem, const GreedyResult& start, std::int64_t target, std::uint64_t rounds,
               Budget& budget) {
  using namespace improve_detail;
  Dice dice;
  std::vector<std::int32_t> order = start.order;
  Layout now = start.layout, best = start.layout;
  std::int64_t now_excess = excess(problem, now, target);
  for (std::uint64_t round = 0; round < rounds && best.height > target && budget.spend(1); ++round) {
    const std::vector<std::size_t> high = positions_above(problem, order, now, target);
    const std::size_t from = high[dice.below(high.size())];
    const std::size_t to = from == 0 ? dice.below(order.size()) : dice.below(from);
    std::vector<std::int32_t> next = order;
    const std::int32_t item = next[from];
    next.erase(next.begin() + static_cast<std::ptrdiff_t>(from));
    next.insert(next.begin() + static_cast<std::ptrdiff_t>(to), item);
    Bound bound;
    bound.target = target;
    bound.excess = now_excess;
    Layout layout;
    if (!place_in_order(problem, next, start.fit, bound, layout)) continue;
    const std::int64_t next_excess = excess(problem, layout, target);
    order = std::move(next);
    now = std::move(layout);
    now_excess = next_excess;
    if (now.height < best.height) best = now;
  }
  return best;
}

}  // namespace thimble::memory::packing
