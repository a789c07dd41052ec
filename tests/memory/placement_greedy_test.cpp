// Greedy placement against its definition.

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include <thimble/memory/placement/problem.h>

#include "support/catch.h"

namespace {

using namespace thimble;
using namespace memory::packing;
using memory::Buffer;

// First and best fit by the definition: an offset is free where nothing placed overlaps, ends of what is placed are all
// that can be lowest.
std::int64_t gap_by_hand(const Problem& problem, const std::vector<std::int32_t>& placed, const Layout& layout,
                         std::int32_t i, Fit fit) {
  const Item& item = problem.items[static_cast<std::size_t>(i)];
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const std::int32_t other : placed) {
    const Item& there = problem.items[static_cast<std::size_t>(other)];
    const std::int64_t offset = layout.offsets[static_cast<std::size_t>(other)];
    if (there.lower < item.upper && item.lower < there.upper) taken.push_back({offset, offset + there.size});
  }
  std::sort(taken.begin(), taken.end());
  std::int64_t free = 0, tightest = -1, least = 0;
  for (const auto& [offset, end] : taken) {
    const std::int64_t room = offset - free;
    if (room >= item.size) {
      if (fit == Fit::lowest) return free;
      if (tightest < 0 || room < least) {
        tightest = free;
        least = room;
      }
    }
    free = std::max(free, end);
  }
  return tightest < 0 ? free : tightest;
}

TEST_CASE("placement: greedy by lists of sections is greedy by the definition", "[placement]") {
  std::mt19937 random(5);
  std::vector<Buffer> buffers;
  buffers.push_back({.lower = 0, .upper = 40'000, .bytes = 64});  // one problem
  for (std::uint64_t i = 0; i < 9'000; ++i) {                     // more than one list holds
    const std::uint64_t lower = random() % 39'000, brief = 1 + random() % 9;
    buffers.push_back(
        {.lower = lower, .upper = lower + (i % 50 == 0 ? brief * 100 : brief), .bytes = 1 + random() % 99});
  }
  const std::vector<Problem> problems = split(buffers, 1);
  REQUIRE(problems.size() == 1);
  const Problem& problem = problems.front();
  REQUIRE(problem.items.size() > 8'192);
  for (const auto& [order, fit] : {std::pair(Order::size, Fit::lowest), std::pair(Order::time, Fit::tightest)}) {
    Layout layout;
    const std::vector<std::int32_t> items = make_order(problem, order);
    REQUIRE(place_in_order(problem, items, fit, std::numeric_limits<std::int64_t>::max(), layout));
    std::vector<std::int32_t> placed;
    bool is_same = true;
    for (const std::int32_t i : items) {
      is_same = is_same && layout.offsets[static_cast<std::size_t>(i)] == gap_by_hand(problem, placed, layout, i, fit);
      placed.push_back(i);
    }
    CHECK(is_same);
  }
}

}  // namespace
