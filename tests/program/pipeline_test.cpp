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
  CHECK(json["schedules"][2]["time"] == 28.5);  // (m + (p - 1) / v) (f + b)
  CHECK(json["schedules"][2]["in_flight"][0] == 5.5);
  CHECK(files_test::read_text_file(folder / "p.svg").find("1F1B: time 33, bubble 37.5 %") != std::string::npos);
}

TEST_CASE("program pipeline: a schedule that does not apply has a row that says why", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said =
      run(folder, "pipeline --stages 4 --micro-batches 6 --json --svg '" + folder / "p.svg" + "'");
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(said->status == 0);
  const nlohmann::json rows = nlohmann::json::parse(said->out)["schedules"];
  REQUIRE(rows.size() == 3);
  CHECK(rows[1]["time"] == 27.0);  // (m + p - 1) (f + b)
  CHECK(rows[2] == nlohmann::json{{"schedule", "interleaved, 2 chunks"},
                                  {"why_not", "does not apply: needs --micro-batches that --stages divides"}});
  CHECK(std::filesystem::exists(folder / "p.svg"));
  const std::string text = run(folder, "pipeline --stages 4 --micro-batches 2")->out;
  CHECK(text.find("interleaved, 2 chunks             -         -  does not apply: needs --mic") != std::string::npos);
  CHECK(run(folder, "pipeline --stages 4 --micro-batches 6 --chunks 1")->status == 0);
  CHECK(run(folder, "pipeline --stages 0")->status == 2);
}

TEST_CASE("program pipeline: stages in chunks plan and train with the numbers of one rank", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::string net =
      " char-gpt --layers 4 --width 32 --heads 4 --seq 16 --batch 8 --pp 2 --pipeline interleaved "
      "--chunks 2 --json ";
  const std::optional<Output> plan = run(folder, "plan" + net + "--micro-batches 4 --ranks 2");
  if (!plan) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(plan->status == 0);
  const nlohmann::json planned = nlohmann::json::parse(plan->out);
  CHECK((planned["pp"] == 2 && planned["chunks"] == 2 && planned["ranks"].size() == 2));
  const std::string steps = "--data synthetic --steps 3 ";
  const std::optional<Output> one = run(folder, "train" + net + steps + "--micro-batches 4");
  const std::optional<Output> two = run(folder, "train" + net + steps + "--micro-batches 4 --ranks 2");
  REQUIRE((one->status == 0 && two->status == 0));
  const nlohmann::json alone = nlohmann::json::parse(one->out), several = nlohmann::json::parse(two->out);
  CHECK(several["loss_last"] == alone["loss_last"]);
  CHECK(several["validation_loss"] == alone["validation_loss"]);
  for (const nlohmann::json& rank : several["ranks"]) {
    CHECK(rank["predicted_peak_bytes"] == rank["measured_peak_bytes"]);
  }
  const std::optional<Output> wrong = run(folder, "plan" + net + "--micro-batches 3 --batch 6 --ranks 2");
  CHECK(wrong->status == 2);
}
