// Greedy placement against its definition.

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/memory/placement/problem.h>

#include "support/catch.h"

namespace {

using namespace thimble;
using namespace memory::packing;
using memory::Buffer;

// First and best fit by definition: an offset is free if no placed item overlaps, and only 0 and the ends of placed
// items can be lowest.
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
  buffers.push_back({.lower = 0, .upper = 40'000, .bytes = 64});  // connects all buffers into one problem
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

// Buffers of several lifetimes and alignments, in one connected problem.
std::vector<Buffer> mixed_buffers(std::uint64_t count, std::mt19937& random) {
  std::vector<Buffer> buffers = {{.lower = 0, .upper = 900, .bytes = 3}};
  for (std::uint64_t i = 1; i < count; ++i) {
    const std::uint64_t lower = random() % 800, length = 1 + random() % (i % 5 == 0 ? 99 : 7);
    buffers.push_back({i, lower, lower + length, 1 + random() % 50, std::size_t{1} << random() % 4});
  }
  return buffers;
}

TEST_CASE("placement: orders rank by the lengths of lifetimes and the largest load", "[placement]") {
  std::mt19937 random(6);
  for (const std::uint64_t count : {1, 2, 37, 300}) {
    const std::vector<Buffer> buffers = mixed_buffers(count, random);
    const std::vector<Problem> problems = split(buffers, 1);
    REQUIRE(problems.size() == 1);
    const Problem& problem = problems.front();
    const auto load_of = [&](const Buffer& own) {
      std::size_t largest = 0;
      for (std::uint64_t time = own.lower; time < own.upper; ++time) {
        std::size_t load = 0;
        for (const Buffer& b : buffers) load += b.lower <= time && time < b.upper ? b.bytes : 0;
        largest = std::max(largest, load);
      }
      return largest;
    };
    std::vector<std::int32_t> expected(buffers.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
      const auto key = [&](std::int32_t i) {
        const Buffer& own = buffers[problem.buffers[static_cast<std::size_t>(i)]];
        const std::uint64_t length = own.upper - own.lower;
        return std::make_tuple(load_of(own), length, length * own.bytes, -i);
      };
      return key(a) > key(b);
    });
    CHECK(make_order(problem, Order::load_length) == expected);
  }
}

TEST_CASE("placement: improvement gives sound layouts that are no higher", "[placement]") {
  std::mt19937 random(7);
  int improved = 0, reached = 0;
  for (const std::uint64_t count : {2, 30, 150, 700}) {
    for (int trial = 0; trial < 8; ++trial) {
      const std::vector<Buffer> buffers = mixed_buffers(count, random);
      const Problem problem = split(buffers, 1).front();
      Budget greedy(1e6, 1), budget(1e6, 0);
      const Layout start = place_greedily(problem, 0, greedy);
      const Layout result = improve(problem, start, problem.load, budget);
      std::vector<std::size_t> offsets(buffers.size());
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        offsets[problem.buffers[i]] = static_cast<std::size_t>(result.offsets[i]);
      }
      memory::check_placement(buffers, offsets, static_cast<std::size_t>(result.height));
      CHECK(result.height >= problem.load);
      CHECK(result.height <= start.height);
      improved += result.height < start.height ? 1 : 0;
      reached += result.height < start.height && result.height == problem.load ? 1 : 0;
    }
  }
  INFO(improved << " improved, " << reached << " to the load");
  CHECK(improved > 5);
}

}  // namespace
