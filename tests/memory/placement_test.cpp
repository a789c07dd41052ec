// Placement: no two live buffers overlap, no result is below brute force, and the public instances fit.

#include <thimble/memory/placement/placement.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/placement/csv.h>
#include <thimble/memory/placement/problem.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/find_data.h"
#include "support/skip.h"

namespace {

using namespace thimble;
using files_test::contains;
using memory::Buffer;
using memory::Placement;
using memory::PlacementOptions;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The load by definition: the most live bytes at any buffer's start.
std::size_t load_of(const std::vector<Buffer>& buffers, std::size_t unit) {
  std::size_t load = 0;
  for (const Buffer& moment : buffers) {
    std::size_t live = 0;
    for (const Buffer& b : buffers) {
      if (b.lower <= moment.lower && moment.lower < b.upper) live += round_up(b.bytes, unit);
    }
    load = std::max(load, live);
  }
  return load;
}

// Compares every pair by definition: the checker's oracle.
bool overlaps_anywhere(const std::vector<Buffer>& buffers, const std::vector<std::size_t>& offsets) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    for (std::size_t j = i + 1; j < buffers.size(); ++j) {
      const bool in_time = buffers[i].lower < buffers[j].upper && buffers[j].lower < buffers[i].upper;
      const bool in_bytes = offsets[i] < offsets[j] + buffers[j].bytes && offsets[j] < offsets[i] + buffers[i].bytes;
      if (in_time && in_bytes) return true;
    }
  }
  return false;
}

// The least possible height: first fit over every order of the buffers. Some order is optimal: take a placement that
// cannot be lowered and sort its buffers by offset.
std::size_t least_height(const std::vector<Buffer>& buffers, std::size_t unit) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t least = ~std::size_t{0};
  std::vector<std::size_t> offsets(buffers.size());
  do {
    std::size_t height = 0;
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Buffer& b = buffers[order[at]];
      const std::size_t size = round_up(b.bytes, unit), alignment = std::max(unit, b.alignment);
      std::size_t offset = 0;
      for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (std::size_t k = 0; k < at; ++k) {
          const Buffer& other = buffers[order[k]];
          const std::size_t begin = offsets[order[k]], end = begin + round_up(other.bytes, unit);
          const bool in_time = b.lower < other.upper && other.lower < b.upper;
          if (!in_time || offset >= end || begin >= offset + size) continue;
          offset = round_up(end, alignment);
          has_moved = true;
        }
      }
      offsets[order[at]] = offset;
      height = std::max(height, offset + size);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

struct Shape {
  std::size_t count;
  std::uint64_t moments;
  std::size_t most_bytes;
  bool has_alignments;
};

std::vector<Buffer> random_buffers(const Shape& shape, std::mt19937_64& random) {
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < shape.count; ++i) {
    const std::uint64_t lower = random() % shape.moments;
    const std::uint64_t upper = lower + 1 + random() % (shape.moments - lower);
    const std::size_t alignment = shape.has_alignments ? std::size_t{1} << random() % 4 : 1;
    buffers.push_back({i, lower, upper, 1 + random() % shape.most_bytes, alignment});
  }
  return buffers;
}

// Nested lifetimes as in a training step: half of the buffers wait for their backward, the others are short.
std::vector<Buffer> step_like(std::size_t layers, std::mt19937_64& random) {
  std::vector<Buffer> buffers;
  const std::uint64_t end = 8 * layers;
  for (std::size_t i = 0; i < layers; ++i) {
    const std::uint64_t forward = 4 * i, backward = end + 4 * (layers - i);
    buffers.push_back({buffers.size(), forward, backward, 64 * (1 + random() % 64), 1});
    buffers.push_back({buffers.size(), forward, forward + 2 + random() % 6, 64 * (1 + random() % 200), 1});
    buffers.push_back({buffers.size(), backward - 3, backward + 5, 64 * (1 + random() % 64), 1});
    buffers.push_back({buffers.size(), backward - 2, backward + random() % 3, 1 + random() % 5000, 1});
  }
  return buffers;
}

void check(const std::vector<Buffer>& buffers, const Placement& placement, std::size_t unit) {
  memory::check_placement(buffers, placement.offsets, placement.height);
  CHECK_FALSE(overlaps_anywhere(buffers, placement.offsets));
  std::size_t height = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    CHECK(placement.offsets[i] % unit == 0);
    height = std::max(height, placement.offsets[i] + round_up(buffers[i].bytes, unit));
  }
  CHECK(placement.height == height);
  CHECK(placement.load == load_of(buffers, unit));
  CHECK(placement.height >= placement.load);
  if (placement.height == placement.load) CHECK(placement.is_optimal);
}

std::string refusal(const std::vector<Buffer>& buffers, const PlacementOptions& options = {}) {
  try {
    memory::place(buffers, options);
  } catch (const ValueError& error) {
    return error.what();
  }
  return {};
}

std::string fault(const std::vector<Buffer>& buffers, const std::vector<std::size_t>& offsets, std::size_t height) {
  try {
    memory::check_placement(buffers, offsets, height);
  } catch (const PlanError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("placement: stages can be left out", "[placement]") {
  std::vector<memory::Buffer> buffers;
  for (std::uint64_t i = 0; i < 200; ++i) {
    buffers.push_back({i, i * 7 % 97, i * 7 % 97 + 1 + i * i % 23, 64 * (1 + i * i % 31)});
  }
  using enum memory::PlacementStage;
  for (const auto stage : {greedy, improvement, exact}) {
    const memory::Placement placement = memory::place(buffers, {.node_limit = 20'000, .last_stage = stage});
    memory::check_placement(buffers, placement.offsets, placement.height);
    CHECK(placement.stage <= stage);
  }
}

TEST_CASE("placement: nothing is lower than brute force, and what is optimal is said to be", "[placement]") {
  std::mt19937_64 random(1);
  const std::vector<Shape> shapes = {{1, 3, 5, false}, {2, 3, 5, true},  {3, 4, 9, true}, {4, 5, 9, false},
                                     {5, 5, 9, true},  {6, 5, 9, false}, {6, 6, 5, true}, {7, 5, 6, false}};
  std::size_t above_load = 0;
  for (const Shape& shape : shapes) {
    for (int trial = 0; trial < (shape.count == 7 ? 25 : 60); ++trial) {
      const std::vector<Buffer> buffers = random_buffers(shape, random);
      for (const std::size_t unit : {1, 4}) {
        INFO(memory::write_placement(buffers) << "unit " << unit);
        const Placement placement = memory::place(buffers, {.seconds = 100, .node_limit = 0, .unit = unit});
        check(buffers, placement, unit);
        CHECK(placement.height == least_height(buffers, unit));
        CHECK(placement.is_optimal);
        above_load += placement.height > placement.load ? 1 : 0;
      }
    }
  }
  CHECK(above_load > 10);  // some needed a proof
}

TEST_CASE("placement: the exact stage alone agrees with brute force, below and at the optimum", "[placement]") {
  std::mt19937_64 random(2);
  int impossible = 0;
  memory::packing::Budget spent(100, 1);
  CHECK(spent.spend(1));
  CHECK_FALSE(spent.spend(1));
  CHECK(spent.share(1).is_spent());
  for (int trial = 0; trial < 150; ++trial) {
    const std::vector<Buffer> buffers = random_buffers({6, 6, 7, trial % 2 == 0}, random);
    const auto least = static_cast<std::int64_t>(least_height(buffers, 1));
    std::int64_t proven = 0;
    for (const memory::packing::Problem& problem : memory::packing::split(buffers, 1)) {
      for (std::int64_t capacity = problem.load; capacity <= least; ++capacity) {
        memory::packing::Budget budget(100, 0);
        memory::packing::Layout layout;
        const auto verdict = memory::packing::search(problem, capacity, budget, layout);
        REQUIRE(verdict != memory::packing::Verdict::unknown);
        if (verdict == memory::packing::Verdict::impossible) {
          ++impossible;
          continue;
        }
        CHECK(layout.height <= capacity);
        proven = std::max(proven, capacity);
        break;
      }
    }
    INFO(memory::write_placement(buffers));
    CHECK(proven == least);  // first found at the optimum of the highest problem, and nowhere below
  }
  CHECK(impossible > 5);
}

TEST_CASE("placement: random instances are placed soundly, whatever ends the search", "[placement]") {
  std::mt19937_64 random(3);
  const std::vector<Shape> shapes = {
      {20, 10, 100, false}, {60, 40, 1000, true}, {200, 500, 1 << 20, false}, {300, 60, 37, true}};
  for (const Shape& shape : shapes) {
    for (int trial = 0; trial < 4; ++trial) {
      const std::vector<Buffer> buffers = random_buffers(shape, random);
      for (const std::uint64_t nodes : {1, 40, 3000}) {
        const Placement placement = memory::place(buffers, {.seconds = 100, .node_limit = nodes, .unit = 8});
        check(buffers, placement, 8);
        CHECK(placement.nodes <= nodes + 64);
        const Placement again = memory::place(buffers, {.seconds = 100, .node_limit = nodes, .unit = 8});
        CHECK(again.offsets == placement.offsets);  // repeatable, since the clock did not end the search
        CHECK(again.nodes == placement.nodes);
      }
    }
  }
}

TEST_CASE("placement: buffers of a training step reach the load", "[placement]") {
  std::mt19937_64 random(4);
  for (const std::size_t layers : {1, 5, 40, 150}) {
    const std::vector<Buffer> buffers = step_like(layers, random);
    const Placement placement = memory::place(buffers, {.seconds = 20});
    INFO(layers << " layers, " << to_string(placement.stage) << ", ratio " << placement.ratio());
    memory::check_placement(buffers, placement.offsets, placement.height);
    CHECK(placement.height == placement.load);
    CHECK(placement.is_optimal);
  }
}

TEST_CASE("placement: a capacity ends the search, and no time leaves a greedy placement", "[placement]") {
  std::mt19937_64 random(5);
  const std::vector<Buffer> buffers = random_buffers({80, 40, 500, false}, random);
  const Placement none = memory::place(buffers, {.seconds = 0});
  check(buffers, none, 64);
  CHECK(none.stage == memory::PlacementStage::greedy);
  const Placement enough = memory::place(buffers, {.capacity_bytes = none.height, .seconds = 100});
  CHECK(enough.nodes <= none.nodes + 1);
  CHECK(enough.height <= none.height);
  const Placement empty = memory::place({}, {});
  CHECK(empty.height == 0);
  CHECK(empty.is_optimal);
  CHECK(empty.ratio() == 1);
  // A capacity below the load is impossible; the result's height shows it.
  const Placement below = memory::place(buffers, {.capacity_bytes = 64, .seconds = 2});
  CHECK(below.height >= below.load);
}

TEST_CASE("placement: bad arguments are named", "[placement]") {
  const std::size_t huge = std::size_t{1} << 61;
  CHECK(contains(refusal({{7, 3, 3, 8, 1}}), "buffer 7 ([3, 3), 8 bytes) has an empty lifetime"));
  CHECK(contains(refusal({{7, 3, 4, 0, 1}}), "buffer 7 ([3, 4), 0 bytes) has 0 bytes"));
  CHECK(contains(refusal({{7, 3, 4, 8, 3}}), "has alignment 3; expected a power of two"));
  CHECK(contains(refusal({{7, 3, 4, 8, 0}}), "has alignment 0; expected a power of two"));
  CHECK(contains(refusal({{7, 3, 4, huge / 2, 1}}), "all sizes together exceed 2^62 bytes"));
  CHECK(contains(refusal({{7, 3, 4, huge / 2 - 1, 1}, {8, 3, 4, huge / 2 - 1, 1}, {9, 3, 4, ~std::size_t{0}, 1}}),
                 "buffer 9"));
  CHECK(contains(refusal({{7, 3, 4, 8, huge / 2}}), "all sizes together exceed 2^62 bytes"));
  CHECK(contains(refusal({}, {.unit = 48}), "unit 48, expected a power of two"));
  CHECK(contains(refusal({}, {.seconds = -1}), "-1.000000 seconds, expected at least 0"));
  CHECK(contains(refusal({}, {.seconds = std::nan("")}), "nan seconds, expected at least 0"));
}

TEST_CASE("placement: the checker finds what is wrong and passes what is right", "[placement]") {
  const std::vector<Buffer> buffers = {{0, 0, 4, 10, 1}, {1, 2, 6, 10, 1}, {2, 4, 8, 10, 2}};
  CHECK(fault(buffers, {0, 10, 0}, 20).empty());
  CHECK(contains(fault(buffers, {0, 9, 0}, 20),
                 "buffer 1 ([2, 6), 10 bytes) at 9 overlaps buffer 0 ([0, 4), 10 bytes) at 0"));
  CHECK(contains(fault(buffers, {0, 10, 4}, 20), "buffer 2"));
  CHECK(contains(fault(buffers, {5, 5, 20}, 40), "overlaps"));
  CHECK(contains(fault(buffers, {0, 10, 0}, 19), "ends above the height of 19 bytes"));
  CHECK(contains(fault(buffers, {0, ~std::size_t{0} - 3, 0}, 19), "ends above the height"));
  CHECK(contains(fault(buffers, {0, 10, 21}, 40), "at 21 is not aligned to 2"));
  CHECK_THROWS_AS(memory::check_placement(buffers, std::vector<std::size_t>{0, 1}, 9), ValueError);
  // check_placement() refuses the buffers that place() refuses, though no two overlap.
  for (const Buffer& wrong : {Buffer{7, 3, 3, 8, 1}, Buffer{7, 4, 3, 8, 1}, Buffer{7, 3, 4, 0, 1},
                              Buffer{7, 3, 4, 8, 0}, Buffer{7, 3, 4, 8, 6}}) {
    CHECK_THROWS_AS(memory::check_placement(std::vector{wrong}, std::vector<std::size_t>{0}, 64), ValueError);
  }

  // Random offsets: it reports an overlap exactly when some pair overlaps.
  std::mt19937_64 random(6);
  int sound = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const std::vector<Buffer> some = random_buffers({4, 4, 4, false}, random);
    std::vector<std::size_t> offsets;
    for (std::size_t i = 0; i < some.size(); ++i) offsets.push_back(random() % 12);
    const bool is_sound = !overlaps_anywhere(some, offsets);
    INFO(memory::write_placement(some, offsets));
    CHECK(fault(some, offsets, 100).empty() == is_sound);
    sound += is_sound ? 1 : 0;
  }
  CHECK(sound > 100);
  CHECK(sound < 1900);
}

TEST_CASE("placement: public instances fit into their capacity", "[placement]") {
  const bool is_found = thimble_test::find_data("minimalloc/A.1048576.csv").has_value();
  if (!is_found)
    thimble_test::skip_part("the public packing instances are not there; the ones of this file stand alone");
  for (const char* name : {"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"}) {
    const auto path = thimble_test::find_data("minimalloc/" + std::string(name) + ".1048576.csv");
    if (!path) continue;
    const std::vector<Buffer> buffers = memory::read_placement(*path).buffers;
    const Placement placement =
        memory::place(buffers, {.capacity_bytes = 1048576, .seconds = 60, .node_limit = 400'000, .unit = 1});
    INFO(name << ": " << buffers.size() << " buffers, height " << placement.height << ", " << placement.ms << " ms");
    check(buffers, placement, 1);
    CHECK(placement.height <= 1048576);
  }
  // Our own instance, cut from a full rectangle of 48 x 4096 bytes, so that its optimum is known: no byte is ever free.
  std::mt19937_64 random(8);
  struct Cut {
    std::uint64_t lower, upper;
    std::size_t offset, end;
  };
  std::vector<Cut> cuts = {{0, 48, 0, 4096}};
  while (cuts.size() < 90) {
    Cut& cut = cuts[random() % cuts.size()];
    Cut rest = cut;
    const bool in_time = random() % 2 == 0;
    if ((in_time && cut.upper - cut.lower < 2) || (!in_time && cut.end - cut.offset < 64)) continue;
    if (in_time) {
      cut.upper = rest.lower = cut.lower + 1 + random() % (cut.upper - cut.lower - 1);
    } else {
      cut.end = rest.offset = cut.offset + 16 * (1 + random() % ((cut.end - cut.offset) / 16 - 1));
    }
    cuts.push_back(rest);
  }
  std::vector<Buffer> buffers;
  for (const Cut& cut : cuts) buffers.push_back({buffers.size(), cut.lower, cut.upper, cut.end - cut.offset, 1});
  std::shuffle(buffers.begin(), buffers.end(), random);
  const Placement placement = memory::place(buffers, {.seconds = 60, .node_limit = 300'000, .unit = 1});
  INFO("own instance: height " << placement.height << ", " << placement.nodes << " nodes, " << placement.ms << " ms");
  check(buffers, placement, 1);
  CHECK(placement.load == 4096);
  CHECK(placement.height == 4096);
}

TEST_CASE("placement: what a search that was cut short calls optimal is optimal", "[placement]") {
  std::mt19937_64 random(9);
  std::size_t proven_above_load = 0, cut_short = 0;
  for (int trial = 0; trial < 120; ++trial) {
    const std::vector<Buffer> buffers = random_buffers({8 + random() % 8, 8, 12, trial % 2 == 0}, random);
    const Placement full = memory::place(buffers, {.seconds = 100, .node_limit = 0, .unit = 1});
    REQUIRE(full.is_optimal);
    for (const std::uint64_t nodes : {20, 40, 60, 100, 200, 400, 600}) {
      INFO(memory::write_placement(buffers) << nodes << " nodes");
      const Placement limited = memory::place(buffers, {.seconds = 100, .node_limit = nodes, .unit = 1});
      CHECK(limited.height >= full.height);
      if (limited.is_optimal) CHECK(limited.height == full.height);
      proven_above_load += limited.is_optimal && limited.height > limited.load ? 1 : 0;
      cut_short += limited.is_optimal ? 0 : 1;
    }
  }
  CHECK(proven_above_load > 10);
  CHECK(cut_short > 50);
}
