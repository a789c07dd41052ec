// thimble pipeline, as a user calls it.

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"
#include "support/skip.h"

using program_test::Output;
using program_test::run;

TEST_CASE("program pipeline: three schedules of four stages", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said =
      run(folder, "pipeline --stages 4 --micro-batches 8 --json --svg '" + folder / "p.svg" + "'");
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(said->status == 0);
  const nlohmann::json json = nlohmann::json::parse(said->out);
  REQUIRE(json["schedules"].size() == 3);
  // (m + p - 1) (f + b) with bubbles (p - 1) / m and (p - 1) / (v m).
  CHECK(json["schedules"][0]["time"] == 33.0);
  CHECK(json["schedules"][1]["in_flight"] == nlohmann::json({4.0, 3.0, 2.0, 1.0}));
  CHECK(json["schedules"][2]["bubble"].get<double>() == Approx(3.0 / 16));
  CHECK(json["schedules"][2]["in_flight"][0] == 5.5);
  CHECK(files_test::read_text_file(folder / "p.svg").find("1F1B: time 33, bubble 37.5 %") != std::string::npos);
}

TEST_CASE("program pipeline: what is wrong is said, and nothing is written", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said =
      run(folder, "pipeline --stages 4 --micro-batches 6 --svg '" + folder / "p.svg" + "'");
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  CHECK(said->status == 2);
  CHECK(said->error.find("6 micro-batches on 4 stages; a multiple is allowed") != std::string::npos);
  CHECK(!std::filesystem::exists(folder / "p.svg"));
  CHECK(run(folder, "pipeline --stages 4 --micro-batches 6 --chunks 1")->status == 0);
  CHECK(run(folder, "pipeline --stages 0")->status == 2);
}
