// Greedy placement: puts items one by one into gaps between the placed ones.

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {
namespace {

/// A placed item.
struct Shelf {
  std::int32_t lower, upper;
  std::int64_t offset, end;
};

/// Finds the gap for `item` between shelves passed by ascending offset.
class Gap {
 public:
  Gap(const Item& item, Fit fit) noexcept : item_(item), fit_(fit) {}

  /// False once the gap is found.
  bool pass(const Shelf& shelf) noexcept {
    if (shelf.end <= at_ || shelf.upper <= item_.lower || shelf.lower >= item_.upper) return true;
    if (shelf.offset - at_ >= item_.size) {
      if (fit_ == Fit::lowest) return false;
      if (shelf.offset - at_ < best_room_) {
        best_room_ = shelf.offset - at_;
        best_offset_ = at_;
      }
    }
    at_ = align_up(shelf.end, item_.alignment);
    return true;
  }
  std::int64_t offset() const noexcept { return best_offset_ < 0 ? at_ : best_offset_; }

 private:
  const Item item_;
  const Fit fit_;
  std::int64_t at_ = 0;  // lowest offset above all visited shelves
  std::int64_t best_offset_ = -1, best_room_ = std::numeric_limits<std::int64_t>::max();
};

bool is_below(const Shelf& a, const Shelf& b) noexcept { return a.offset < b.offset; }

/// Shelves by ascending offset, in chunks, so that an insertion moves the shelves of only one chunk.
class Stack {
 public:
  void add(const Shelf& shelf) {
    constexpr std::size_t most_in_chunk = 512;
    auto chunk = std::upper_bound(chunks_.begin(), chunks_.end(), shelf,
                                  [](const Shelf& s, const std::vector<Shelf>& c) { return is_below(s, c.front()); });
    if (chunk != chunks_.begin()) --chunk;
    if (chunk == chunks_.end()) chunk = chunks_.insert(chunk, std::vector<Shelf>());
    chunk->insert(std::upper_bound(chunk->begin(), chunk->end(), shelf, is_below), shelf);
    if (chunk->size() <= most_in_chunk) return;
    std::vector<Shelf> upper(chunk->begin() + most_in_chunk / 2, chunk->end());
    chunk->resize(most_in_chunk / 2);
    chunks_.insert(chunk + 1, std::move(upper));
  }

  class Cursor {
   public:
    explicit Cursor(const Stack& stack) noexcept : chunks_(stack.chunks_) {}
    const Shelf* get() const noexcept { return chunk_ < chunks_.size() ? &chunks_[chunk_][at_] : nullptr; }
    void advance() noexcept {
      if (++at_ < chunks_[chunk_].size()) return;
      at_ = 0;
      ++chunk_;
    }

   private:
    const std::vector<std::vector<Shelf>>& chunks_;
    std::size_t chunk_ = 0, at_ = 0;
  };

 private:
  std::vector<std::vector<Shelf>> chunks_;  // none is empty
};

/// Indexes the shelves by time, so that an item examines few of many. A brief shelf is in the list of each of the one
/// or two periods that it touches; a brief item examines its periods and the lasting shelves. In a small problem all
/// shelves are lasting.
class Shelves {
 public:
  explicit Shelves(const Problem& problem) {
    constexpr std::size_t of_a_period = 512;
    const std::size_t periods = problem.items.size() / of_a_period;
    if (periods < 8) return;
    width_ = problem.sections / static_cast<std::int32_t>(periods) + 1;
    periods_.resize(static_cast<std::size_t>((problem.sections - 1) / width_) + 1);
  }

  std::int64_t find_gap(const Item& item, Fit fit) {
    Gap gap(item, fit);
    Stack::Cursor lasting(lasting_);
    const auto pass_lasting_until = [&](std::int64_t offset) {
      for (const Shelf* shelf = lasting.get(); shelf != nullptr && shelf->offset < offset; shelf = lasting.get()) {
        if (!gap.pass(*shelf)) return false;
        lasting.advance();
      }
      return true;
    };
    if (is_brief(item.lower, item.upper)) {
      collect(item);
      for (const Shelf& shelf : seen_) {
        if (!pass_lasting_until(shelf.offset) || !gap.pass(shelf)) return gap.offset();
      }
    } else {
      for (Stack::Cursor brief(brief_); brief.get() != nullptr; brief.advance()) {
        if (!pass_lasting_until(brief.get()->offset) || !gap.pass(*brief.get())) return gap.offset();
      }
    }
    pass_lasting_until(std::numeric_limits<std::int64_t>::max());
    return gap.offset();
  }

  void add(const Shelf& shelf) {
    if (!is_brief(shelf.lower, shelf.upper)) return lasting_.add(shelf);
    brief_.add(shelf);
    for (std::int32_t p = shelf.lower / width_; p <= (shelf.upper - 1) / width_; ++p) {
      periods_[static_cast<std::size_t>(p)].push_back(shelf);
    }
  }

 private:
  bool is_brief(std::int32_t lower, std::int32_t upper) const noexcept { return upper - lower <= width_; }

  /// Collects the brief shelves that overlap a brief item in time.
  void collect(const Item& item) {
    seen_.clear();
    const std::int32_t first = item.lower / width_;
    for (std::int32_t p = first; p <= (item.upper - 1) / width_; ++p) {
      for (const Shelf& shelf : periods_[static_cast<std::size_t>(p)]) {
        const bool is_first = p == std::max(first, shelf.lower / width_);
        if (is_first && shelf.upper > item.lower && shelf.lower < item.upper) seen_.push_back(shelf);
      }
    }
    std::sort(seen_.begin(), seen_.end(), is_below);
  }

  std::int32_t width_ = 0;                   // sections of a period
  Stack lasting_, brief_;                    // longer than a period, and not
  std::vector<std::vector<Shelf>> periods_;  // brief shelves, in order of addition
  std::vector<Shelf> seen_;
};

}  // namespace

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
  const std::vector<std::int64_t> loads = loads_of(problem);
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

bool place_in_order(const Problem& problem, std::span<const std::int32_t> order, Fit fit, std::int64_t most_height,
                    Layout& layout) {
  layout.offsets.resize(problem.items.size());
  layout.height = 0;
  Shelves shelves(problem);
  for (const std::int32_t i : order) {
    const Item& item = problem.items[static_cast<std::size_t>(i)];
    const std::int64_t offset = shelves.find_gap(item, fit), end = offset + item.size;
    shelves.add({item.lower, item.upper, offset, end});
    layout.offsets[static_cast<std::size_t>(i)] = offset;
    layout.height = std::max(layout.height, end);
    if (layout.height > most_height) return false;
  }
  return true;
}

Layout place_greedily(const Problem& problem, std::int64_t target, Budget& budget) {
  Layout best;
  std::int64_t most_height = std::numeric_limits<std::int64_t>::max();
  for (const Fit fit : {Fit::lowest, Fit::tightest}) {
    for (const Order order : all_orders) {
      if (!best.offsets.empty() && (best.height <= target || !budget.spend(1))) return best;
      Layout layout;
      if (!place_in_order(problem, make_order(problem, order), fit, most_height, layout)) continue;
      best = std::move(layout);
      most_height = best.height - 1;
    }
  }
  return best;
}

}  // namespace thimble::memory::packing
