// Improvement of a greedy placement: an item that ends too high ejects the items in its way.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <thimble/memory/placement/problem.h>

namespace thimble::memory::packing {
namespace {

/// Items by time. A brief item is in the lists of the one or two periods that it touches; the others are lasting.
class Calendar {
 public:
  explicit Calendar(const std::vector<Item>& items, std::int32_t sections) : items_(items) {
    constexpr std::size_t of_a_period = 64;
    width_ = sections / static_cast<std::int32_t>(items.size() / of_a_period + 1) + 1;
    periods_.resize(static_cast<std::size_t>((sections - 1) / width_) + 1);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      if (is_lasting(static_cast<std::int32_t>(i))) continue;
      for (std::int32_t p = item.lower / width_; p <= (item.upper - 1) / width_; ++p) {
        periods_[static_cast<std::size_t>(p)].push_back(static_cast<std::int32_t>(i));
      }
    }
  }

  bool is_lasting(std::int32_t i) const noexcept {
    const Item& item = items_[static_cast<std::size_t>(i)];
    return item.upper - item.lower > width_;
  }
  bool overlap(std::int32_t i, std::int32_t j) const noexcept {
    const Item &item = items_[static_cast<std::size_t>(i)], &other = items_[static_cast<std::size_t>(j)];
    return other.upper > item.lower && other.lower < item.upper;
  }

  /// Calls visit(j) once for each brief item j that overlaps the brief item i in time, itself included.
  template <class F>
  void for_each_brief(std::int32_t i, F&& visit) const {
    const Item& item = items_[static_cast<std::size_t>(i)];
    const std::int32_t first = item.lower / width_;
    for (std::int32_t p = first; p <= (item.upper - 1) / width_; ++p) {
      for (const std::int32_t j : periods_[static_cast<std::size_t>(p)]) {
        if (overlap(i, j) && p == std::max(first, items_[static_cast<std::size_t>(j)].lower / width_)) visit(j);
      }
    }
  }

 private:
  const std::vector<Item>& items_;
  std::int32_t width_;  // sections of a period
  std::vector<std::vector<std::int32_t>> periods_;
};

/// A layout of some of the items, at most `target` high. The others wait to be placed where they eject least.
class Ejection {
 public:
  Ejection(const Problem& problem, const Layout& start, std::int64_t target)
      : items_(problem.items), target_(target), calendar_(problem.items, problem.sections), offsets_(start.offsets) {
    double largest = 1;
    for (const Item& item : items_) largest = std::max(largest, item.area());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      prices_.push_back(1 + static_cast<std::int64_t>(1000 * std::sqrt(items_[i].area() / largest)));
      const auto item = static_cast<std::int32_t>(i);
      if (offsets_[i] + items_[i].size > target) {
        offsets_[i] = nowhere;
        waiting_.push_back(item);
      } else {
        for_each_list(item, [](Places& list, const Place& place) { list.push_back(place); });
      }
    }
    for (Sorted* const sorted : {&all_, &lasting_}) {
      std::sort(sorted->by_offset.begin(), sorted->by_offset.end());
      std::sort(sorted->by_end.begin(), sorted->by_end.end());
    }
    rises_ = prices_;
    for (std::int64_t& rise : rises_) rise = std::max<std::int64_t>(1, rise / 64);
  }

  bool is_done() const noexcept { return waiting_.empty(); }
  Layout layout() const {
    Layout layout{offsets_, 0};
    for (std::size_t i = 0; i < items_.size(); ++i)
      layout.height = std::max(layout.height, offsets_[i] + items_[i].size);
    return layout;
  }

  /// Places the waiting item with the highest price.
  void step() {
    const auto next = std::max_element(waiting_.begin(), waiting_.end(), [&](std::int32_t a, std::int32_t b) {
      return prices_[static_cast<std::size_t>(a)] < prices_[static_cast<std::size_t>(b)];
    });
    const std::int32_t i = *next;
    *next = waiting_.back();
    waiting_.pop_back();
    const std::int64_t offset = cheapest_offset(i);
    const std::int64_t end = offset + items_[static_cast<std::size_t>(i)].size;
    for (const auto& [begin, j] : by_offset_) {
      if (begin < end && begin + items_[static_cast<std::size_t>(j)].size > offset) {
        prices_[static_cast<std::size_t>(j)] += rises_[static_cast<std::size_t>(j)];
        eject(j);
      }
    }
    offsets_[static_cast<std::size_t>(i)] = offset;
    for_each_list(i, [](Places& list, const Place& place) {
      list.insert(std::lower_bound(list.begin(), list.end(), place), place);
    });
  }

 private:
  static constexpr std::int64_t nowhere = -1;
  using Place = std::pair<std::int64_t, std::int32_t>;  // offset or end, item
  using Places = std::vector<Place>;
  struct Sorted {
    Places by_offset, by_end;
  };

  Place offset_of(std::int32_t i) const noexcept { return {offsets_[static_cast<std::size_t>(i)], i}; }
  Place end_of(std::int32_t i) const noexcept {
    return {offsets_[static_cast<std::size_t>(i)] + items_[static_cast<std::size_t>(i)].size, i};
  }

  void eject(std::int32_t i) {
    for_each_list(
        i, [](Places& list, const Place& place) { list.erase(std::lower_bound(list.begin(), list.end(), place)); });
    offsets_[static_cast<std::size_t>(i)] = nowhere;
    waiting_.push_back(i);
  }

  /// Calls change(list, place) for each list that a placed item i belongs to.
  template <class F>
  void for_each_list(std::int32_t i, F&& change) {
    for (Sorted* const sorted : {&all_, &lasting_}) {
      if (sorted == &lasting_ && !calendar_.is_lasting(i)) continue;
      change(sorted->by_offset, offset_of(i));
      change(sorted->by_end, end_of(i));
    }
  }

  /// Sorts `found` and merges the places of `sorted` whose items overlap item i in time.
  void merge(std::int32_t i, const Places& sorted, Places& found) {
    std::sort(found.begin(), found.end());
    merged_.clear();
    auto next = found.begin();
    for (const Place& place : sorted) {
      if (!calendar_.overlap(i, place.second)) continue;
      for (; next != found.end() && *next < place; ++next) merged_.push_back(*next);
      merged_.push_back(place);
    }
    merged_.insert(merged_.end(), next, found.end());
    std::swap(merged_, found);
  }

  /// The offset, on or below a neighbour, at which the items in the way cost least; the lowest among equals.
  std::int64_t cheapest_offset(std::int32_t i) {
    const Item& item = items_[static_cast<std::size_t>(i)];
    by_offset_.clear();
    by_end_.clear();
    const bool is_lasting = calendar_.is_lasting(i);
    if (!is_lasting) {
      calendar_.for_each_brief(i, [&](std::int32_t j) {
        if (offsets_[static_cast<std::size_t>(j)] == nowhere) return;
        by_offset_.push_back(offset_of(j));
        by_end_.push_back(end_of(j));
      });
    }
    const Sorted& others = is_lasting ? all_ : lasting_;
    merge(i, others.by_offset, by_offset_);
    merge(i, others.by_end, by_end_);
    std::int64_t best_offset = nowhere, best_price = std::numeric_limits<std::int64_t>::max();
    // Sweeps offsets upwards. `begun` is the price of the items that begin below the end of `item`, `ended` the price
    // of the items that end at or below its offset.
    const auto sweep = [&](const auto& all, auto&& offset_at) {
      std::int64_t begun = 0, ended = 0;
      std::size_t b = 0, e = 0;
      const auto look = [&](std::int64_t offset) {
        if (offset < 0 || offset + item.size > target_) return;
        for (; b < by_offset_.size() && by_offset_[b].first < offset + item.size; ++b)
          begun += price(by_offset_[b].second);
        for (; e < by_end_.size() && by_end_[e].first <= offset; ++e) ended += price(by_end_[e].second);
        const std::int64_t price = begun - ended;
        if (price < best_price || (price == best_price && offset < best_offset)) {
          best_price = price;
          best_offset = offset;
        }
      };
      look(0);
      for (const auto& [at, j] : all) look(offset_at(at));
    };
    sweep(by_end_, [&](std::int64_t end) { return align_up(end, item.alignment); });
    sweep(by_offset_,
          [&](std::int64_t offset) { return offset < item.size ? 0 : (offset - item.size) & ~(item.alignment - 1); });
    return best_offset;
  }
  std::int64_t price(std::int32_t i) const noexcept { return prices_[static_cast<std::size_t>(i)]; }

  const std::vector<Item>& items_;
  std::int64_t target_;
  Calendar calendar_;
  std::vector<std::int64_t> offsets_;         // by item; `nowhere` while it waits
  std::vector<std::int64_t> prices_, rises_;  // by item: price of ejecting it, and its rise per ejection
  std::vector<std::int32_t> waiting_;
  Sorted all_, lasting_;                // placed items
  Places by_offset_, by_end_, merged_;  // placed items that overlap the item to be placed
};

}  // namespace

Layout improve(const Problem& problem, const Layout& start, std::int64_t target, Budget& budget) {
  Layout best = start;
  // Try the target first, then heights halfway between the last one missed and the best.
  constexpr int attempts = 6;
  const auto at_peak = std::ranges::count_if(
      loads_of(problem), [&](std::int64_t load) { return load >= problem.load - problem.load / 16; });
  const std::size_t most_steps = std::min(problem.items.size() / 4, static_cast<std::size_t>(at_peak)) + 1;
  std::int64_t missed = target;
  for (int attempt = 0; attempt < attempts && best.height > target; ++attempt) {
    const std::int64_t height = attempt == 0 ? target : missed + (best.height - missed) / 2;
    Ejection ejection(problem, best, height);
    for (std::size_t step = 0; step < most_steps && !ejection.is_done() && budget.spend(1); ++step) ejection.step();
    if (ejection.is_done()) {
      best = ejection.layout();
    } else {
      missed = height;
    }
  }
  return best;
}

}  // namespace thimble::memory::packing
