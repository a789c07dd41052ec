// Placement's CSV: round trips, and malformed files are refused with the line.

#include <thimble/memory/placement/csv.h>

#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/placement/placement.h>

#include "support/catch.h"
#include "support/files.h"

namespace {

using namespace thimble;
using files_test::contains;
using memory::Buffer;
using memory::Placement;

std::string csv_fault(const std::string& text) {
  try {
    memory::parse_placement(text, "in.csv");
  } catch (const FileError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("placement csv: what is written is read again", "[placement]") {
  std::mt19937_64 random(7);
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < 50; ++i) {
    const std::uint64_t lower = random() % 30, upper = lower + 1 + random() % (30 - lower);
    buffers.push_back({i, lower, upper, 1 + random() % (1 << 30), 1});
  }
  const Placement placement = memory::place(buffers, {.node_limit = 100, .unit = 1});
  for (const bool has_offsets : {false, true}) {
    const std::vector<std::size_t> offsets = has_offsets ? placement.offsets : std::vector<std::size_t>();
    const std::string text = memory::write_placement(buffers, offsets);
    const memory::PlacementFile file = memory::parse_placement(text, "a.csv");
    CHECK(file.buffers == buffers);
    CHECK(file.offsets == offsets);
    CHECK(memory::write_placement(file) == text);
  }
  CHECK_THROWS_AS(memory::write_placement(buffers, std::vector<std::size_t>{1}), ValueError);

  const memory::PlacementFile other = memory::parse_placement("size,upper,id,lower\r\n8,5,9,4\r\n\r\n", "a.csv");
  CHECK(other.buffers == std::vector<Buffer>{{0, 4, 5, 8, 1}});
  CHECK(other.ids == std::vector<std::string>{"9"});
  CHECK(memory::parse_placement("id,lower,upper,size\n", "a.csv").buffers.empty());

  const files_test::TemporaryFolder folder;
  files_test::write_text_file(folder / "a.csv", memory::write_placement(buffers));
  CHECK(memory::read_placement(folder / "a.csv").buffers == buffers);
  CHECK_THROWS_AS(memory::read_placement(folder / "none.csv"), FileError);
  CHECK_THROWS_AS(memory::read_placement(folder.path()), FileError);
  CHECK_THROWS_AS(memory::read_placement("/dev/zero"), FileError);
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK_THROWS_AS(memory::read_placement(folder / "fifo"), FileError);
}

TEST_CASE("placement csv: ids, alignments, gaps and older columns as minimalloc has them", "[placement]") {
  struct Row {
    std::string text;
    memory::PlacementFile file;
    std::string written;
  };
  const Row rows[] = {
      {"id,lower,upper,size\nb1,0,3,4\n,3,9,5\n-1,3,9,5\n\"a,\"\"b\"\"\",0,9,6\n",
       {{{0, 0, 3, 4}, {1, 3, 9, 5}, {2, 3, 9, 5}, {3, 0, 9, 6}}, {"b1", "", "-1", "a,\"b\""}, {}, {}},
       "id,lower,upper,size\nb1,0,3,4\n,3,9,5\n-1,3,9,5\n\"a,\"\"b\"\"\",0,9,6\n"},
      {"\xEF\xBB\xBFgaps,size,alignment,upper,lower,id\r\n7-9 2-3@1:4,6,8,11,1,x\r\n,5,1,4,2,y\r\n",
       {{{0, 1, 11, 6, 8}, {1, 2, 4, 5, 1}}, {"x", "y"}, {{{2, 3, 1, 4}, {7, 9, 0, 0}}, {}}, {}},
       "id,lower,upper,size,alignment,gaps\nx,1,11,6,8,2-3@1:4 7-9\ny,2,4,5,1,\n"},
      {"buffer_id,start,end,size,gaps,offset\n7,0,2,4,1-1,9\n",
       {{{0, 0, 3, 4}}, {"7"}, {{{1, 2, 0, 0}}}, {9}},
       "id,lower,upper,size,gaps,offset\n7,0,3,4,1-2,9\n"},
      {"id,lower,upper,size,gaps\n7,1,9,4,1-3 3-4 5-9\n",  // from the start, and to the end
       {{{0, 1, 9, 4}}, {"7"}, {{{1, 3, 0, 0}, {3, 4, 0, 0}, {5, 9, 0, 0}}}, {}},
       "id,lower,upper,size,gaps\n7,1,9,4,1-3 3-4 5-9\n"},
      {"id,lower,upper,size\n\"\"\"a\"\"\",0,9,6\n",
       {{{0, 0, 9, 6}}, {"\"a\""}, {}, {}},
       "id,lower,upper,size\n\"\"\"a\"\"\",0,9,6\n"},
      {"buffer,begin,upper,size\n7,0,2,4\n", {{{0, 0, 2, 4}}, {"7"}, {}, {}}, "id,lower,upper,size\n7,0,2,4\n"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const memory::PlacementFile file = memory::parse_placement(row.text, "a.csv");
    CHECK(file.buffers == row.file.buffers);
    CHECK(file.ids == row.file.ids);
    CHECK(file.gaps == row.file.gaps);
    CHECK(file.offsets == row.file.offsets);
    CHECK(memory::write_placement(file) == row.written);
  }
}

TEST_CASE("placement: gaps are used, and never overlap", "[placement]") {
  using memory::Gap;
  // b fits into a's first gap, c into the bytes that a frees in its second.
  const std::vector<Buffer> buffers = {{0, 0, 10, 8}, {1, 2, 4, 8}, {2, 6, 7, 5}};
  const std::vector<std::vector<Gap>> gaps = {{{2, 4, 0, 0}, {6, 8, 0, 3}}, {}, {}};
  const Placement placement = memory::place_with_gaps(buffers, gaps, {.unit = 1});
  CHECK(placement.load == 8);
  CHECK(placement.height == 8);
  CHECK(placement.is_optimal);
  memory::check_placement_with_gaps(buffers, gaps, placement.offsets, 8);
  CHECK(memory::place(buffers, {.unit = 1}).height == 16);
  const std::vector<std::size_t> low = {0, 0, 2}, moved = {0, 1, 3};
  CHECK_THROWS_AS(memory::check_placement_with_gaps(buffers, gaps, low, 16), PlanError);
  CHECK_THROWS_AS(memory::check_placement_with_gaps(buffers, gaps, moved, 8), PlanError);
  for (const Gap& bad : {Gap{2, 2}, Gap{0, 11}, Gap{3, 4, 5, 9}, Gap{3, 4, 5, 4}}) {
    const std::vector<std::vector<Gap>> wrong = {{bad}, {}, {}};
    CHECK_THROWS_AS(memory::place_with_gaps(buffers, wrong, {.unit = 1}), ValueError);
  }

  // Random buffers: checks at every time and byte that no two buffers overlap.
  std::mt19937_64 random(11);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t unit = std::size_t{1} << below(3);
    std::vector<Buffer> some;
    std::vector<std::vector<Gap>> their;
    for (std::size_t i = 0; i < 2 + below(7); ++i) {
      const std::uint64_t lower = below(8), upper = lower + 1 + below(12 - lower);
      some.push_back({i, lower, upper, 1 + below(9), std::size_t{1} << below(4)});
      their.emplace_back();
      for (std::uint64_t at = lower; at < upper; at += 1 + below(4)) {
        const std::uint64_t end = std::min(upper, at + 1 + below(3));
        const std::size_t from = below(some[i].bytes), to = from + below(some[i].bytes - from + 1);
        if (below(2) == 0) their[i].push_back({at, end, from, from == to ? 0 : to});
        if (!their[i].empty() && their[i].back().from == from && their[i].back().to == 0) their[i].back().from = 0;
        at = std::max(at, end);
      }
    }
    const Placement found = memory::place_with_gaps(some, their, {.node_limit = 200, .unit = unit});
    memory::check_placement_with_gaps(some, their, found.offsets, found.height);
    std::size_t load = 0;
    for (std::uint64_t time = 0; time < 12; ++time) {
      std::vector<int> holders(found.height);
      std::size_t live = 0;
      for (std::size_t i = 0; i < some.size(); ++i) {
        if (time < some[i].lower || time >= some[i].upper) continue;
        std::size_t from = 0, to = some[i].bytes;
        for (const Gap& gap : their[i]) {
          if (time >= gap.lower && time < gap.upper) from = gap.from, to = gap.to;
        }
        for (std::size_t byte = from; byte < to; ++byte) CHECK(++holders.at(found.offsets[i] + byte) == 1);
        if (from < to) live += (to + unit - 1) / unit * unit - from / unit * unit;
        CHECK(found.offsets[i] % std::max(unit, some[i].alignment) == 0);
      }
      load = std::max(load, live);
    }
    CHECK(found.load == load);
    CHECK(found.is_optimal == (found.height == load));
  }
}

TEST_CASE("placement csv: what is malformed is told with its line", "[placement]") {
  const std::string head = "id,lower,upper,size\n0,0,1,8\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1: no header"},
      {"\n", "line 1: unknown column ''"},
      {"id,lower,upper\n", "line 1: no column 'size'"},
      {"id,lower,upper,size,color\n", "line 1: unknown column 'color'"},
      {"id,lower,upper,size,id\n", "line 1: column 'id' is there twice"},
      {"ID,lower,upper,size\n", "line 1: unknown column 'ID'"},
      {head + "1,2,3\n", "line 3: 3 fields where the header has 4"},
      {head + "1,2,3,4,5\n", "line 3: 5 fields where the header has 4"},
      {head + "\n1,2,3,4\n", "line 3: 1 fields"},
      {head + "1,2,3,\n", "line 3: size '' is not a whole number"},
      {head + "1,2,3,4x\n", "line 3: size '4x' is not a whole number"},
      {head + "1,2,3, 4\n", "line 3: size ' 4' is not a whole number"},
      {head + "1,2,3,+4\n", "line 3: size '+4' is not a whole number"},
      {head + "1,2,3,1e3\n", "line 3: size '1e3' is not a whole number"},
      {head + "1,-2,3,4\n", "line 3: lower '-2' is negative"},
      {head + "1,2,3,-4\n", "line 3: size '-4' is negative"},
      {head + "1,2,3,18446744073709551616\n", "is too large"},
      {head + "1,2,3,4611686018427387904\n", "line 3: size '4611686018427387904' is too large"},
      {head + "1,2,3,4611686018427387896\n", "line 3: all sizes up to here together are too large"},
      {head + "1,3,3,4\n", "line 3: lower 3 is not below upper 3"},
      {head + "1,4,3,4\n", "line 3: lower 4 is not below upper 3"},
      {head + "1,2,3,0\n", "line 3: size is 0"},
      {head + "1,2,3,4\n0,2,3,4\n", "line 4: id '0' is in line 2 already"},
      {"id,upper,end,lower,size\n", "line 1: column 'end' is there twice"},
      {"id,lower,upper,size\n\"a,0,1,8\n", "line 2: a quoted field does not end in its line"},
      {"id,lower,upper,size\n\"a\"b,0,1,8\n", "line 2: text behind the quotes of a field"},
      {"id,lower,upper,size,alignment\n0,0,1,8,12\n", "line 2: alignment 12 is not a power of two"},
      {"id,lower,upper,size,gaps\n0,0,9,8,3\n", "line 2: gap '3' is not of the form"},
      {"id,lower,upper,size,gaps\n0,0,9,8,3-4@2\n", "line 2: gap '3-4@2' is not of the form"},
      {"id,lower,upper,size,gaps\n0,0,9,8,4-4\n", "line 2: gap '4-4' is empty"},
      {"id,lower,upper,size,gaps\n0,1,9,8,0-2\n", "line 2: gap '0-2' is not within the lifetime"},
      {"id,lower,upper,size,gaps\n0,0,9,8,3-4@2:9\n", "line 2: gap '3-4@2:9' holds bytes"},
      {"id,lower,upper,size,gaps\n0,0,9,8,3-4@2:2\n", "line 2: gap '3-4@2:2' holds bytes"},
      {"id,lower,upper,size,gaps\n0,0,9,8,5-7 3-6\n", "line 2: gaps overlap at 5"},
      {"id,lower,upper,size,gaps\n0,0,9,8,x-6\n", "line 2: gap's lower 'x' is not a whole number"},
      {"id,lower,upper,size,offset\n0,0,1,8,\n", "line 2: offset '' is not a whole number"},
      {std::string("id,lower,upper,size\n0,0,1,8\0\n", 29), "line 2: size '8\\x00' is not a whole number"}};
  for (const auto& [text, why] : cases) {
    INFO(text);
    CHECK(contains(csv_fault(text), why));
    CHECK(contains(csv_fault(text), "in.csv: at byte "));
  }
  CHECK(contains(csv_fault(head + "1,2,3\n"), "in.csv: at byte 28: line 3"));
}
