// Placement's CSV: what is written is read again, and what is malformed is told with its line.

#include <thimble/memory/placement/csv.h>

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
    CHECK(memory::write_placement(file.buffers, file.offsets) == text);
  }
  CHECK_THROWS_AS(memory::write_placement(buffers, std::vector<std::size_t>{1}), ValueError);

  const memory::PlacementFile other = memory::parse_placement("size,upper,id,lower\r\n8,5,9,4\r\n\r\n", "a.csv");
  CHECK(other.buffers == std::vector<Buffer>{{9, 4, 5, 8, 1}});
  CHECK(memory::parse_placement("id,lower,upper,size\n", "a.csv").buffers.empty());

  const files_test::TemporaryFolder folder;
  files_test::write_text_file(folder / "a.csv", memory::write_placement(buffers));
  CHECK(memory::read_placement(folder / "a.csv").buffers == buffers);
  CHECK_THROWS_AS(memory::read_placement(folder / "none.csv"), FileError);
  CHECK_THROWS_AS(memory::read_placement(folder.path()), FileError);
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
      {head + "-1,2,3,4\n", "line 3: id '-1' is negative"},
      {head + "1,2,3,-4\n", "line 3: size '-4' is negative"},
      {head + "1,2,3,18446744073709551616\n", "is too large"},
      {head + "1,2,3,4611686018427387904\n", "line 3: size '4611686018427387904' is too large"},
      {head + "1,2,3,4611686018427387903\n", "line 3: all sizes up to here together are too large"},
      {head + "1,3,3,4\n", "line 3: lower 3 is not below upper 3"},
      {head + "1,4,3,4\n", "line 3: lower 4 is not below upper 3"},
      {head + "1,2,3,0\n", "line 3: size is 0"},
      {head + "1,2,3,4\n0,2,3,4\n", "line 4: id 0 is in line 2 already"},
      {"id,lower,upper,size,offset\n0,0,1,8,\n", "line 2: offset '' is not a whole number"},
      {std::string("id,lower,upper,size\n0,0,1,8\0\n", 29), "line 2: size '8\\x00' is not a whole number"}};
  for (const auto& [text, why] : cases) {
    INFO(text);
    CHECK(contains(csv_fault(text), why));
    CHECK(contains(csv_fault(text), "in.csv: at byte "));
  }
}
