// Exact placement: branch and bound over the offsets of items (memory/placement/state.h).

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <thimble/memory/placement/state.h>

namespace thimble::memory::packing {
namespace {

/// Proven dead ends, each a 128-bit hash of the open items. A later one with the same index overwrites it.
class Memory {
 public:
  struct Key {
    std::uint64_t a = 0, b = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  explicit Memory(std::size_t entries) : entries_(entries) {}
  bool has(const Key& key) const noexcept { return entries_[place_of(key)] == key; }
  void put(const Key& key) noexcept { entries_[place_of(key)] = key; }

 private:
  std::size_t place_of(const Key& key) const noexcept { return static_cast<std::size_t>(key.a % entries_.size()); }
  std::vector<Key> entries_;
};

/// The choice of the next item: the lowest of all (MiniMalloc's canonical order), or the lowest of the section with the
/// fewest candidates or the least slack. The order breaks ties.
enum class Rule : std::uint8_t { lowest, fewest, tightest };
struct Strategy {
  Rule rule;
  Order order;
};

/// A depth-first search by one strategy.
class Attempt {
 public:
  Attempt(State& state, Memory& memory, const Strategy& strategy, std::uint64_t node_limit, Budget& budget)
      : state_(state), memory_(memory), strategy_(strategy), node_limit_(node_limit), budget_(budget) {}

  Verdict run(std::int32_t items, std::int32_t sections) {
    ranks_.resize(static_cast<Size>(items));
    items_.resize(static_cast<Size>(items));
    std::iota(items_.begin(), items_.end(), 0);
    rank(0, items_.size());
    return solve(0, items_.size(), 0, sections);
  }

 private:
  using Size = std::size_t;
  Verdict solve(Size begin, Size end, std::int32_t first, std::int32_t last);
  Verdict branch(Size begin, Size end, std::int32_t first, std::int32_t last);
  Verdict solve_part(Size begin, Size end, std::int32_t first, std::int32_t last);
  void rank(Size begin, Size end);
  Memory::Key key_of(Size begin, Size end) const noexcept;
  std::int32_t choose(Size begin, Size end, std::int32_t first, std::int32_t last) const;
  std::int32_t choose_section(std::int32_t first, std::int32_t last) const;
  bool stands_before(std::int32_t a, std::int32_t b) const noexcept {
    const std::int64_t bound_a = state_.bound(a), bound_b = state_.bound(b);
    if (bound_a != bound_b) return bound_a < bound_b;
    const Rank &rank_a = ranks_[static_cast<Size>(a)], &rank_b = ranks_[static_cast<Size>(b)];
    return rank_a != rank_b ? rank_a > rank_b : a < b;
  }

  State& state_;
  Memory& memory_;
  Strategy strategy_;
  std::uint64_t node_limit_;
  Budget& budget_;
  std::uint64_t nodes_ = 0;
  std::vector<std::int32_t> items_;  // [begin, end) are the open items of a part
  std::vector<Rank> ranks_;          // by item, for open ones; loads as of the last cut
};

/// Cuts the open items [begin, end) where none of them crosses, and solves part after part.
Verdict Attempt::solve(Size begin, Size end, std::int32_t first, std::int32_t last) {
  std::int32_t from = first;
  for (std::int32_t s = first + 1; s <= last && begin < end; ++s) {
    if (s < last && state_.crossing(s) != 0) continue;
    const auto split = std::partition(items_.begin() + static_cast<std::ptrdiff_t>(begin),
                                      items_.begin() + static_cast<std::ptrdiff_t>(end),
                                      [&](std::int32_t i) { return state_.item(i).lower < s; });
    const Size middle = static_cast<Size>(split - items_.begin());
    if (middle > begin) {
      const bool is_whole = from == first && s == last;
      const Verdict verdict = is_whole ? branch(begin, middle, from, s) : solve_part(begin, middle, from, s);
      if (verdict != Verdict::found) return verdict;
    }
    begin = middle;
    from = s;
  }
  return Verdict::found;
}

/// Ranks the items by the loads of open items.
void Attempt::rank(Size begin, Size end) {
  for (Size at = begin; at < end; ++at) {
    const Item& item = state_.item(items_[at]);
    std::int64_t load = 0;
    for (std::int32_t s = item.lower; s < item.upper; ++s) load = std::max(load, state_.section(s).left);
    ranks_[static_cast<Size>(items_[at])] = rank_of(item, strategy_.order, load);
  }
}

Verdict Attempt::solve_part(Size begin, Size end, std::int32_t first, std::int32_t last) {
  std::vector<std::pair<std::int32_t, Rank>> before;
  before.reserve(end - begin);
  for (Size at = begin; at < end; ++at) before.emplace_back(items_[at], ranks_[static_cast<Size>(items_[at])]);
  rank(begin, end);
  const Verdict verdict = branch(begin, end, first, last);
  for (const auto& [item, rank] : before) ranks_[static_cast<Size>(item)] = rank;
  return verdict;
}

Memory::Key Attempt::key_of(Size begin, Size end) const noexcept {
  Memory::Key key;
  for (Size at = begin; at < end; ++at) {
    const std::uint64_t number = state_.fingerprint(items_[at]);
    key.a += number;
    key.b += (number ^ (number >> 29)) * 0xd6e8feb86659fd93u;
  }
  return key;
}

std::int32_t Attempt::choose_section(std::int32_t first, std::int32_t last) const {
  using Score = std::array<std::int64_t, 3>;
  std::int32_t best = -1;
  Score best_score{};
  for (std::int32_t s = first; s < last; ++s) {
    const State::Section& section = state_.section(s);
    if (section.open == 0) continue;
    Score score{section.candidates, state_.slack(s), -section.left};
    if (strategy_.rule == Rule::tightest) std::swap(score[0], score[1]);
    if (best < 0 || score < best_score) {
      best = s;
      best_score = score;
    }
  }
  return best;
}

/// An open item with no lower open neighbour.
std::int32_t Attempt::choose(Size begin, Size end, std::int32_t first, std::int32_t last) const {
  if (strategy_.rule == Rule::lowest) {
    return *std::min_element(items_.begin() + static_cast<std::ptrdiff_t>(begin),
                             items_.begin() + static_cast<std::ptrdiff_t>(end),
                             [&](std::int32_t a, std::int32_t b) { return stands_before(a, b); });
  }
  std::int32_t best = -1;
  for (const std::int32_t i : state_.open_items(choose_section(first, last))) {
    if (best < 0 || stands_before(i, best)) best = i;
  }
  for (bool is_lowest = false; !is_lowest;) {
    std::int32_t lower = best;
    for (const std::int32_t i : state_.neighbours(best)) {
      if (!state_.is_placed(i) && state_.bound(i) < state_.bound(best) && stands_before(i, lower)) lower = i;
    }
    is_lowest = lower == best;
    best = lower;
  }
  return best;
}

Verdict Attempt::branch(Size begin, Size end, std::int32_t first, std::int32_t last) {
  const State::Mark start = state_.mark();
  Memory::Key key;
  bool is_first = true;
  Verdict verdict = Verdict::impossible;
  while (true) {  // place the chosen item; failing that, raise it and choose again
    if (!budget_.spend(1) || (node_limit_ != 0 && ++nodes_ > node_limit_)) {
      verdict = Verdict::unknown;
      break;
    }
    if (!state_.propagate({items_.data() + begin, end - begin})) break;
    if (is_first) {
      key = key_of(begin, end);
      if (memory_.has(key)) break;
      is_first = false;
    }
    const std::int32_t chosen = choose(begin, end, first, last);
    const State::Mark before = state_.mark();
    std::swap(*std::find(items_.begin() + static_cast<std::ptrdiff_t>(begin), items_.end(), chosen), items_[end - 1]);
    if (state_.place(chosen)) {
      verdict = solve(begin, end - 1, first, last);
      if (verdict == Verdict::found) return verdict;
    } else {
      verdict = Verdict::impossible;
    }
    state_.undo(before);
    if (verdict == Verdict::unknown) break;
    if (!state_.raise(chosen)) break;
  }
  state_.undo(start);
  if (verdict == Verdict::impossible && !is_first) memory_.put(key);
  return verdict;
}

constexpr Strategy strategies[] = {
    {Rule::lowest, Order::load_length}, {Rule::lowest, Order::load_area}, {Rule::fewest, Order::load_area},
    {Rule::tightest, Order::length},    {Rule::lowest, Order::length},    {Rule::fewest, Order::load_length},
};
constexpr std::size_t memory_entries = 1 << 16;

}  // namespace

Verdict search(const Problem& problem, std::int64_t capacity, Budget& budget, Layout& layout) {
  if (problem.load > capacity) return Verdict::impossible;
  State state(problem, capacity);
  Memory memory(memory_entries);
  std::vector<std::int32_t> items(problem.items.size());
  std::iota(items.begin(), items.end(), 0);
  if (!state.propagate(items)) return Verdict::impossible;
  const State::Mark start = state.mark();
  // Strategies take turns, and the turns double in length each round.
  for (std::uint64_t node_limit = 4 * problem.items.size() + 256;; node_limit *= 2) {
    for (const Strategy& strategy : strategies) {
      const Verdict verdict = Attempt(state, memory, strategy, node_limit, budget)
                                  .run(static_cast<std::int32_t>(items.size()), problem.sections);
      if (verdict == Verdict::found) layout = state.layout();
      if (verdict != Verdict::unknown) return verdict;
      if (budget.is_spent()) return Verdict::unknown;
      state.undo(start);
    }
  }
}

}  // namespace thimble::memory::packing
