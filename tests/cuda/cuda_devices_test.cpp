// `thimble devices` where there is a CUDA device: what it says of each. On a GPU where there is one, else on
// tests/emulated.

#include <iostream>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>

#include "support/catch.h"
#include "support/operator_table.h"

using thimble::testing::has_cuda;

TEST_CASE("cuda_devices: memory, capability and driver of each GPU", "[cuda][program]") {
  if (!has_cuda()) return;
  CLI::App program;
  thimble::bench::add_devices(program);
  std::ostringstream text;
  std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
  try {
    program.parse("devices --json");
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  const auto json = nlohmann::json::parse(text.str());
  CHECK(json["cuda"]["built"] == true);
  CHECK(json["cuda"]["found"] == true);
  CHECK_FALSE(json["cuda"].contains("why"));
  REQUIRE(json["cuda"]["devices"].size() >= 1);
  int number = 0;
  for (const auto& gpu : json["cuda"]["devices"]) {
    CHECK(gpu["device"] == "cuda:" + std::to_string(number++));
    CHECK_FALSE(gpu["name"].get<std::string>().empty());
    CHECK(gpu["memory_bytes"].get<std::uint64_t>() >= gpu["free_bytes"].get<std::uint64_t>());
    CHECK(gpu["memory_bytes"].get<std::uint64_t>() > 0);
    CHECK(gpu["multiprocessors"].get<int>() > 0);
    for (const char* const version : {"capability", "driver", "runtime"}) {
      INFO(version);
      std::istringstream number_of(gpu[version].get<std::string>());
      int major = 0, minor = -1;
      char point = 0;
      number_of >> major >> point >> minor;
      CHECK((major > 0 && point == '.' && minor >= 0 && number_of.eof()));
    }
  }
}
