#include <thimble/memory/placement/state.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace thimble::memory::packing {
namespace {

constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();

std::uint64_t scramble(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

State::State(const Problem& problem, std::int64_t capacity)
    : capacity_(capacity),
      items_(problem.items),
      bounds_(problem.items.size(), 0),
      nodes_(problem.items.size()),
      sections_(static_cast<std::size_t>(problem.sections)),
      crossing_(static_cast<std::size_t>(problem.sections) + 1, 0),
      is_touched_(static_cast<std::size_t>(problem.sections), 0) {
  for (const Item& item : items_) {
    for (std::int32_t s = item.lower; s < item.upper; ++s) {
      Section& section = sections_[static_cast<std::size_t>(s)];
      section.left += item.size;
      ++section.open;
      if (s > item.lower) ++crossing_[static_cast<std::size_t>(s)];
    }
  }
  live_begin_.assign(sections_.size() + 1, 0);
  for (std::size_t s = 0; s < sections_.size(); ++s) {
    live_begin_[s + 1] = live_begin_[s] + static_cast<std::size_t>(sections_[s].open);
  }
  live_.resize(live_begin_.back());
  std::vector<std::size_t> next(live_begin_.begin(), live_begin_.end() - 1);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    for (std::int32_t s = items_[i].lower; s < items_[i].upper; ++s) {
      live_[next[static_cast<std::size_t>(s)]++] = static_cast<std::int32_t>(i);
    }
  }
  find_neighbours();
  find_twins();
  for (std::size_t i = 0; i < items_.size(); ++i) {
    change(static_cast<std::int32_t>(i), 0, 0, false);
  }
  touch(0, problem.sections);
  item_trail_.clear();
}

std::uint64_t State::count_neighbours(const Problem& problem) {
  // Of two overlapping items, one begins while the other lives, or both begin together.
  std::vector<std::uint64_t> begins(static_cast<std::size_t>(problem.sections) + 1, 0);
  for (const Item& item : problem.items) ++begins[static_cast<std::size_t>(item.lower) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::uint64_t count = 0;
  for (const Item& item : problem.items) {
    const std::uint64_t after =
        begins[static_cast<std::size_t>(item.upper)] - begins[static_cast<std::size_t>(item.lower) + 1];
    const std::uint64_t together =
        begins[static_cast<std::size_t>(item.lower) + 1] - begins[static_cast<std::size_t>(item.lower)] - 1;
    count += 2 * after + together;
  }
  return count;
}

void State::find_neighbours() {
  std::vector<std::int32_t> order(items_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return item(a).lower != item(b).lower ? item(a).lower < item(b).lower : a < b;
  });
  const auto for_each_pair = [&](auto&& visit) {
    for (auto a = order.begin(); a != order.end(); ++a) {
      for (auto b = a + 1; b != order.end() && item(*b).lower < item(*a).upper; ++b) visit(*a, *b);
    }
  };
  neighbours_begin_.assign(items_.size() + 1, 0);
  for_each_pair([&](std::int32_t a, std::int32_t b) {
    ++neighbours_begin_[static_cast<std::size_t>(a) + 1];
    ++neighbours_begin_[static_cast<std::size_t>(b) + 1];
  });
  std::partial_sum(neighbours_begin_.begin(), neighbours_begin_.end(), neighbours_begin_.begin());
  neighbours_.resize(neighbours_begin_.back());
  std::vector<std::size_t> next(neighbours_begin_.begin(), neighbours_begin_.end() - 1);
  for_each_pair([&](std::int32_t a, std::int32_t b) {
    neighbours_[next[static_cast<std::size_t>(a)]++] = b;
    neighbours_[next[static_cast<std::size_t>(b)]++] = a;
  });
}

void State::find_twins() {
  std::vector<std::int32_t> order(items_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kind = [&](std::int32_t i) {
    const Item& it = item(i);
    return std::make_tuple(it.lower, it.upper, it.size, it.alignment);
  };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return std::make_tuple(kind(a), a) < std::make_tuple(kind(b), b); });
  for (std::size_t at = 1; at < order.size(); ++at) {
    if (kind(order[at - 1]) == kind(order[at])) {
      nodes_[static_cast<std::size_t>(order[at])].earlier_twin = order[at - 1];
    }
  }
}

void State::touch(std::int32_t first, std::int32_t end) {
  for (std::int32_t s = first; s < end; ++s) {
    if (is_touched_[static_cast<std::size_t>(s)] != 0) continue;
    is_touched_[static_cast<std::size_t>(s)] = 1;
    touched_.push_back(s);
  }
}

void State::change(std::int32_t i, std::int64_t floor, std::int64_t bound, bool is_raised) {
  Node& node = nodes_[static_cast<std::size_t>(i)];
  item_trail_.push_back({i, bounds_[static_cast<std::size_t>(i)], node});
  bounds_[static_cast<std::size_t>(i)] = bound;
  node.floor = floor;
  node.is_raised = is_raised;
  // The floor of a raised item matters: some item must reach into the hole above it.
  node.fingerprint = scramble(static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(bound));
  if (is_raised) node.fingerprint = scramble(node.fingerprint + static_cast<std::uint64_t>(floor) + 1);
}

/// Whether an open neighbour can still reach into the hole below a raised item.
bool State::has_other_in_hole(std::int32_t i) const noexcept {
  const Node& raised = nodes_[static_cast<std::size_t>(i)];
  const std::int64_t top = raised.floor + item(i).size;
  for (const std::int32_t j : neighbours(i)) {
    const Node& other = nodes_[static_cast<std::size_t>(j)];
    if (!other.is_placed && bound(j) < top) return true;
  }
  return false;
}

bool State::place(std::int32_t i) {
  const Item& placed = item(i);
  const std::int64_t at = bound(i);
  nodes_[static_cast<std::size_t>(i)].is_placed = true;
  placed_trail_.push_back(i);
  for (std::int32_t s = placed.lower; s < placed.upper; ++s) {
    Section& section = sections_[static_cast<std::size_t>(s)];
    section.left -= placed.size;
    std::int32_t* const begin = live_.data() + live_begin_[static_cast<std::size_t>(s)];
    std::swap(*std::find(begin, begin + section.open, i), begin[section.open - 1]);
    --section.open;
    if (s > placed.lower) --crossing_[static_cast<std::size_t>(s)];
  }
  bool is_settled = true;
  std::int32_t first = placed.lower, end = placed.upper;  // changed items overlap the placed one: a single range
  for (const std::int32_t j : neighbours(i)) {
    const Node& other = nodes_[static_cast<std::size_t>(j)];
    if (other.is_placed) continue;
    const std::int64_t floor = align_up(at + placed.size, item(j).alignment);
    if (floor <= other.floor) continue;
    const bool leaves_hole = other.is_raised && at >= other.floor + item(j).size;
    if (leaves_hole && !has_other_in_hole(j)) is_settled = false;
    if (bound(j) < floor) {
      first = std::min(first, item(j).lower);
      end = std::max(end, item(j).upper);
    }
    change(j, floor, std::max(bound(j), floor), false);
  }
  touch(first, end);
  return is_settled;
}

bool State::raise(std::int32_t i) {
  const Node& node = nodes_[static_cast<std::size_t>(i)];
  std::int64_t least = nowhere;
  for (const std::int32_t j : neighbours(i)) {
    const Node& other = nodes_[static_cast<std::size_t>(j)];
    if (!other.is_placed) least = std::min(least, bound(j) + item(j).size);
  }
  if (least == nowhere) return false;
  change(i, node.floor, align_up(least, item(i).alignment), true);
  touch(item(i).lower, item(i).upper);
  return true;
}

/// Raises bounds: a raised item is on an open one, and twins keep their order.
bool State::propagate_bounds(std::span<const std::int32_t> items) {
  constexpr int most_passes = 4;  // raised items can lift each other for long; stopping early only weakens bounds
  bool has_changed = true;
  for (int pass = 0; has_changed && pass < most_passes; ++pass) {
    has_changed = false;
    for (const std::int32_t i : items) {
      const Node& node = nodes_[static_cast<std::size_t>(i)];
      std::int64_t least = bound(i);
      if (node.is_raised) {
        if (!has_other_in_hole(i)) return false;
        std::int64_t support = nowhere;
        for (const std::int32_t j : neighbours(i)) {
          const Node& other = nodes_[static_cast<std::size_t>(j)];
          if (!other.is_placed) support = std::min(support, bound(j) + item(j).size);
        }
        least = std::max(least, align_up(support, item(i).alignment));
      }
      if (node.earlier_twin >= 0 && !is_placed(node.earlier_twin)) {
        least = std::max(least, align_up(bound(node.earlier_twin) + item(i).size, item(i).alignment));
      }
      if (least + item(i).size > capacity_) return false;
      if (least == bound(i)) continue;
      change(i, node.floor, least, node.is_raised);
      touch(item(i).lower, item(i).upper);
      has_changed = true;
    }
  }
  return true;
}

/// Sorts by bound. The order hardly changes between visits, so insertion is fastest unless there are many items.
void State::sort_open_items(std::int32_t s) {
  constexpr std::ptrdiff_t most_inserted = 64;
  std::int32_t* const begin = live_.data() + live_begin_[static_cast<std::size_t>(s)];
  std::int32_t* const end = begin + section(s).open;
  const auto is_lower = [&](std::int32_t a, std::int32_t b) { return bound(a) < bound(b); };
  if (end - begin > most_inserted) {
    if (!std::is_sorted(begin, end, is_lower)) std::sort(begin, end, is_lower);
    return;
  }
  for (std::int32_t* at = begin; at < end; ++at) {
    const std::int32_t i = *at;
    std::int32_t* to = at;
    for (; to > begin && is_lower(i, to[-1]); --to) *to = to[-1];
    *to = i;
  }
}

/// Stacks the open items in order of their bounds, as jobs with release times on one machine: no order ends lower.
bool State::fits_in_turn(std::int32_t s) {
  sort_open_items(s);
  std::int64_t end = 0;
  for (const std::int32_t i : open_items(s)) end = std::max(end, bound(i)) + item(i).size;
  return end <= capacity_;
}

bool State::check_section(std::int32_t s) {
  Section& section = sections_[static_cast<std::size_t>(s)];
  if (section.open == 0) return true;
  const std::int64_t highest_candidate = capacity_ - section.left;
  section.lowest = nowhere;
  section.candidates = 0;
  for (const std::int32_t i : open_items(s)) {
    section.lowest = std::min(section.lowest, bound(i));
    section.candidates += bound(i) <= highest_candidate ? 1 : 0;
  }
  if (section.candidates == section.open) return true;  // any of them may be lowest, and the rest fits above
  return section.candidates > 0 && fits_in_turn(s);
}

bool State::propagate(std::span<const std::int32_t> items) {
  bool has_way = propagate_bounds(items);
  for (const std::int32_t s : touched_) {
    is_touched_[static_cast<std::size_t>(s)] = 0;
    if (!has_way) continue;
    section_trail_.emplace_back(s, sections_[static_cast<std::size_t>(s)]);
    has_way = check_section(s);
  }
  touched_.clear();
  return has_way;
}

void State::undo(const Mark& mark) noexcept {
  for (const std::int32_t s : touched_) is_touched_[static_cast<std::size_t>(s)] = 0;
  touched_.clear();
  while (item_trail_.size() > mark.items) {
    const Change& last = item_trail_.back();
    Node& node = nodes_[static_cast<std::size_t>(last.item)];
    const bool is_placed = node.is_placed;
    node = last.node;
    node.is_placed = is_placed;
    bounds_[static_cast<std::size_t>(last.item)] = last.bound;
    item_trail_.pop_back();
  }
  while (section_trail_.size() > mark.sections) {
    const auto& [s, section] = section_trail_.back();
    sections_[static_cast<std::size_t>(s)].lowest = section.lowest;
    sections_[static_cast<std::size_t>(s)].candidates = section.candidates;
    section_trail_.pop_back();
  }
  while (placed_trail_.size() > mark.placed) {
    const std::int32_t i = placed_trail_.back();
    placed_trail_.pop_back();
    nodes_[static_cast<std::size_t>(i)].is_placed = false;
    const Item& placed = item(i);
    for (std::int32_t s = placed.lower; s < placed.upper; ++s) {
      Section& section = sections_[static_cast<std::size_t>(s)];
      section.left += placed.size;
      ++section.open;  // the last placed item is just behind the open ones
      if (s > placed.lower) ++crossing_[static_cast<std::size_t>(s)];
    }
  }
}

Layout State::layout() const {
  Layout layout;
  layout.offsets = bounds_;
  for (std::size_t i = 0; i < items_.size(); ++i) layout.height = std::max(layout.height, bounds_[i] + items_[i].size);
  return layout;
}

}  // namespace thimble::memory::packing
