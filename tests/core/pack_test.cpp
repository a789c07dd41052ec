// The command `thimble pack`, run as a program.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include <thimble/memory/placement/csv.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/skip.h"

namespace {

using files_test::contains;

struct PackOutput {
  int status = -1;
  std::string out, error;
};

PackOutput pack(const files_test::TemporaryFolder& folder, const std::string& arguments) {
  const std::string out = folder / "stdout.txt", error = folder / "stderr.txt";
  const std::string line =
      std::string("'") + std::getenv("THIMBLE_PROGRAM") + "' pack " + arguments + " > '" + out + "' 2> '" + error + "'";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, files_test::read_text_file(out),
          files_test::read_text_file(error)};
}

}  // namespace

TEST_CASE("placement program: pack places a CSV, writes it and tells whether a capacity is met", "[placement]") {
  if (std::getenv("THIMBLE_PROGRAM") == nullptr) {
    thimble_test::skip("THIMBLE_PROGRAM is not set: the program is not run");
    return;
  }
  const files_test::TemporaryFolder folder;
  const std::string in = folder / "in.csv", out = folder / "out.csv";
  // First fit in this order reaches 13; the load is 10.
  const std::string text = "id,lower,upper,size\n7,0,2,3\n8,1,4,4\n9,0,1,7\n5,3,6,6\n4,2,3,6\n";
  files_test::write_text_file(in, text);

  PackOutput result = pack(folder, "'" + in + "' --json --out '" + out + "'");
  INFO(result.error);
  REQUIRE(result.status == 0);
  const nlohmann::json json = nlohmann::json::parse(result.out);
  CHECK(json.at("buffers") == 5);
  CHECK(json.at("load") == 10);
  CHECK(json.at("height") == 10);
  CHECK(json.at("ratio") == 1.0);
  CHECK(json.at("ms").get<double>() >= 0);
  CHECK(json.at("optimal") == true);
  const thimble::memory::PlacementFile written = thimble::memory::read_placement(out);
  CHECK(written.buffers == thimble::memory::read_placement(in).buffers);
  REQUIRE(written.offsets.size() == 5);
  thimble::memory::check_placement(written.buffers, written.offsets, 10);

  result = pack(folder, "'" + in + "' --capacity 10");
  CHECK(result.status == 0);
  CHECK(contains(result.out, "5 buffers: height 10, load 10, ratio 1.00000 (optimal)"));
  CHECK(contains(result.out, "within the capacity"));
  result = pack(folder, "'" + in + "' --capacity 9 --seconds 1 --json");
  CHECK(result.status == 3);
  CHECK(nlohmann::json::parse(result.out).at("is_met") == false);
  CHECK(result.error.empty());
  result = pack(folder, "'" + in + "' --alignment 64 --json");
  CHECK(result.status == 0);
  CHECK(nlohmann::json::parse(result.out).at("load") == 128);

  const std::size_t entries = folder.entries();
  const std::string fresh = folder / "fresh.csv";
  files_test::write_text_file(folder / "bad.csv", "id,lower,upper,size\n1,2,2,3\n");
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"'" + (folder / "bad.csv") + "' --out '" + fresh + "'", "line 2: lower 2 is not below upper 2"},
      {"'" + (folder / "none.csv") + "' --out '" + fresh + "'", "none.csv"},
      {"'" + in + "' --capacity 0 --out '" + fresh + "'", "--capacity"},
      {"'" + in + "' --capacity -5 --out '" + fresh + "'", "is negative"},
      {"'" + in + "' --seconds nan --out '" + fresh + "'", "--seconds"},
      {"'" + in + "' --alignment 3 --out '" + fresh + "'", "expected a power of two"},
      {"--out '" + fresh + "'", "IN"}};
  for (const auto& [arguments, why] : refused) {
    result = pack(folder, arguments);
    INFO(arguments << ": " << result.error);
    CHECK(result.status == 2);
    CHECK(result.out.empty());
    CHECK(contains(result.error, why));
    CHECK(std::count(result.error.begin(), result.error.end(), '\n') == 1);
  }
  CHECK(folder.entries() == entries + 1);  // bad.csv
}
