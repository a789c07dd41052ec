// Cuts buffers into connected problems; the budget of a search.

#include <thimble/memory/placement/problem.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace thimble::memory::packing {
namespace {

// Compresses the time of the connected buffers `chosen` to sections.
Problem make_problem(std::span<const Buffer> buffers, std::vector<std::size_t> chosen, std::size_t unit) {
  struct Event {
    std::uint64_t time;
    bool is_begin;  // ends come first: lifetimes are half open
    std::int32_t item;
  };
  std::vector<Event> events;
  events.reserve(2 * chosen.size());
  Problem problem;
  problem.items.reserve(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Buffer& buffer = buffers[chosen[i]];
    const std::size_t size = (buffer.bytes + unit - 1) / unit * unit;
    problem.items.push_back({.lower = 0,
                             .upper = 0,
                             .size = static_cast<std::int64_t>(size),
                             .alignment = static_cast<std::int64_t>(std::max(buffer.alignment, unit)),
                             .length = static_cast<double>(buffer.upper - buffer.lower)});
    events.push_back({buffer.lower, true, static_cast<std::int32_t>(i)});
    events.push_back({buffer.upper, false, static_cast<std::int32_t>(i)});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.is_begin != b.is_begin) return b.is_begin;
    return a.item < b.item;
  });
  // A section ends at the first end of a lifetime after a beginning: until there the live set grew.
  std::int64_t live = 0;
  bool has_begun = false;
  for (const Event& event : events) {
    Item& item = problem.items[static_cast<std::size_t>(event.item)];
    if (event.is_begin) {
      item.lower = problem.sections;
      live += item.size;
      problem.load = std::max(problem.load, live);
      has_begun = true;
      continue;
    }
    if (has_begun) ++problem.sections;
    has_begun = false;
    item.upper = problem.sections;
    live -= item.size;
  }
  problem.buffers = std::move(chosen);
  return problem;
}

}  // namespace

std::vector<Problem> split(std::span<const Buffer> buffers, std::size_t unit) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].lower != buffers[b].lower ? buffers[a].lower < buffers[b].lower : a < b;
  });
  std::vector<Problem> problems;
  std::vector<std::size_t> connected;
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    if (!connected.empty() && buffers[i].lower >= end) {
      problems.push_back(make_problem(buffers, std::move(connected), unit));
      connected.clear();
    }
    end = std::max(end, buffers[i].upper);
    connected.push_back(i);
  }
  if (!connected.empty()) problems.push_back(make_problem(buffers, std::move(connected), unit));
  return problems;
}

Budget::Budget(double seconds, std::uint64_t node_limit) : node_limit_(node_limit) {
  constexpr double longest = 1e8;  // three years: no overflow of the clock
  end_ = Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, longest)));
}

bool Budget::spend(std::uint64_t nodes) noexcept {
  nodes_ += nodes;
  if (node_limit_ != 0 && nodes_ > node_limit_) is_spent_ = true;
  if (nodes_ >= next_look_) {
    constexpr std::uint64_t nodes_between_looks = 16;
    next_look_ = nodes_ + nodes_between_looks;
    if (Clock::now() >= end_) is_spent_ = true;
  }
  return !is_spent_;
}

void Budget::charge(const Budget& part) noexcept {
  next_look_ = 0;  // few nodes may have taken long
  spend(part.nodes());
}

Budget Budget::share(double fraction, std::uint64_t most_nodes) const {
  const double seconds = std::chrono::duration<double>(end_ - Clock::now()).count();
  std::uint64_t node_limit = 0;
  if (node_limit_ != 0) {
    const double left = node_limit_ > nodes_ ? static_cast<double>(node_limit_ - nodes_) : 0.0;
    node_limit = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(left * fraction));
  }
  if (most_nodes != 0) node_limit = node_limit == 0 ? most_nodes : std::min(node_limit, most_nodes);
  Budget part(std::max(seconds * fraction, 0.0), node_limit);
  part.is_spent_ = is_spent_;
  return part;
}

}  // namespace thimble::memory::packing
