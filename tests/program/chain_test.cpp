// thimble chain, thimble pack and thimble book from the command line.

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using program_test::Output;
using program_test::run;

constexpr const char* stages = "4:8:2:4 3:6:6:9 1:9:1:3 2:2:4:6 1:5:2:5 --input 2";

}  // namespace

TEST_CASE("program chain: the best schedules of five stages", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said = run(folder, std::string("chain --json ") + stages);
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(said->status == 0);
  const nlohmann::json json = nlohmann::json::parse(said->out);
  CHECK(json["stages"] == 5);
  CHECK(json["exact"] == true);
  // Found by brute force over all persistent schedules (tests/memory/remat): bytes and times of the staircase.
  const std::vector<std::pair<int, int>> steps = {{19, 53}, {22, 51}, {27, 50}, {28, 45}, {36, 43}, {45, 42}};
  REQUIRE(json["schedules"].size() == steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CHECK(json["schedules"][i]["bytes"] == steps[i].first);
    CHECK(json["schedules"][i]["time"] == steps[i].second);
  }
  CHECK(json["schedules"][5]["schedule"] == "[0 1 2 3 4]");

  // The same chain from a file, with comments, sizes and both pictures.
  files_test::write_text_file(folder / "stages",
                              "# five\n4B:8B:2:4\n 3:6:6:9  # the dear one\n\n1:9:1:3\r\n2:2:4:6\n1:5:2:5");
  const std::string pictures = " --svg '" + folder / "s.svg" + "' --staircase '" + folder / "t.svg" + "'";
  const Output read = *run(folder, "chain --input 2 --file '" + folder / "stages" + "' --json" + pictures);
  CHECK(read.out == said->out);
  CHECK(files_test::read_text_file(folder / "s.svg").find("the least memory: time 53, peak 19") != std::string::npos);
  CHECK(files_test::read_text_file(folder / "t.svg").starts_with("<?xml"));

  const Output planned = *run(folder, std::string("chain --budget 30 ") + stages);
  CHECK(planned.out.find("within 30 bytes: time 45, peak 28\n") != std::string::npos);
  const auto best = nlohmann::json::parse(run(folder, std::string("chain --json --budget 30 ") + stages)->out);
  CHECK(best["budget_bytes"] == 30);
  CHECK(best["time"] == 45);
  CHECK(best["peak_bytes"] == 28);
  for (const auto& operation : best["operations"]) {
    CHECK(planned.out.find("  " + operation.get<std::string>() + " ") != std::string::npos);
  }

  // The input's gradient counts: backward holds the input, the inside, d_1 and d_0, 10 + 1 + 1 + 10.
  const Output narrow = *run(folder, "chain 1:1:1:1 --input 10 --json");
  CHECK(nlohmann::json::parse(narrow.out)["schedules"][0]["bytes"] == 22);
}

TEST_CASE("program chain: a budget of just the smallest is kept, and none is no budget", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said = run(folder, std::string("chain --json --budget 19 ") + stages);
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(said->status == 0);
  CHECK(nlohmann::json::parse(said->out)["time"] == 53);
  const Output none = *run(folder, std::string("chain --budget 0 ") + stages);
  CHECK(none.status != 0);
  CHECK(none.error.find("--budget: expected at least 1 byte") != std::string::npos);
}

TEST_CASE("program pack: a capacity that is met exactly, and offsets in multiples of the alignment", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::string in = folder / "in.csv", out = folder / "out.csv";
  files_test::write_text_file(in, "id,lower,upper,size\na,0,2,3\nb,1,3,5\n");
  const std::optional<Output> said = run(folder, "pack '" + in + "' --capacity 8 --json");
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  CHECK(said->status == 0);
  const nlohmann::json json = nlohmann::json::parse(said->out);
  CHECK(json["height"] == 8);
  CHECK(json["capacity"] == 8);
  CHECK(json["is_met"] == true);
  const Output low = *run(folder, "pack '" + in + "' --capacity 7 --json");
  CHECK(low.status == 3);
  CHECK(nlohmann::json::parse(low.out)["is_met"] == false);
  const Output aligned = *run(folder, "pack '" + in + "' --alignment 64 --json --out '" + out + "'");
  CHECK(nlohmann::json::parse(aligned.out)["height"] == 128);
  const std::string written = files_test::read_text_file(out);
  CHECK((written == "id,lower,upper,size,offset\na,0,2,3,0\nb,1,3,5,64\n" ||
         written == "id,lower,upper,size,offset\na,0,2,3,64\nb,1,3,5,0\n"));
}

TEST_CASE("program chain: what is wrong is said, and nothing is written", "[program]") {
  const files_test::TemporaryFolder folder;
  const auto fails = [&](const std::string& arguments, int status, const std::string& part) {
    const std::optional<Output> said = run(folder, "chain " + arguments + " --svg '" + folder / "s.svg" + "'");
    if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
    INFO(arguments << "\n" << said->error);
    CHECK(said->status == status);
    CHECK(said->error.find(part) != std::string::npos);
    CHECK(said->out.empty());
    CHECK_FALSE(std::filesystem::exists(folder / "s.svg"));
  };
  fails("", 2, "expected stages or --file, got neither");
  fails("1:1:1:1 --file x", 2, "expected stages or --file, got both");
  fails("--file nowhere", 2, "nowhere");
  fails("1:2:3", 2, "chain: stage 0: expected OUTPUT:KEPT:FORWARD:BACKWARD, two sizes");
  fails("1:2:3:4:", 2, "chain: stage 0: expected OUTPUT:KEPT:FORWARD:BACKWARD, two sizes");
  fails("1:1:1:1 1:2:x:4", 2, "chain: stage 1: FORWARD: expected a whole number from 0 to 1000000000, got 'x'");
  files_test::write_text_file(folder / "stages", "# two\n1:1:1:1\n\n  1:2:x:4 # no number\n");
  fails("--file '" + folder / "stages" + "'", 2,
        (folder / "stages") + ": at byte 17: chain: stage 1: FORWARD: expected");
  fails("1:1:1:1 -- -1:2:3:4", 2, "-1");
  fails("4:8:2:4 3:6:6:9 --budget 9", 3, "the smallest that one keeps is ");
}

TEST_CASE("program book: figures by name", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::optional<Output> said = run(folder, "book 06-staircase --figures '" + folder / "figures" + "'");
  if (!said) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  CHECK(said->status == 0);
  CHECK(std::filesystem::exists(folder / "figures/06-staircase.svg"));
  CHECK_FALSE(std::filesystem::exists(folder / "figures/01-bar.svg"));
  const Output unknown = *run(folder, "book 99-none");
  CHECK(unknown.status == 2);
  CHECK(unknown.error.find("book: expected one of 01-bar, ") != std::string::npos);
}

// ---- thimble pipeline from the command line.

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

// ---- thimble plan --graph from the command line, and as PyTorch calls it.

namespace {

using program_test::Output;
using program_test::run;

constexpr const char* toy = R"({"version": 1, "name": "toy <net>", "values": [{"bytes": 100, "given": true},
  {"name": "h", "bytes": 4000, "gradient_bytes": 4000}, {"name": "a", "bytes": 4000, "gradient_bytes": 4000}],
  "nodes": [{"name": "fc", "inputs": [0], "outputs": [1], "seconds": 0.002, "backward_reads": [0]},
  {"name": "relu", "inputs": [1], "outputs": [2], "seconds": 0.001, "backward_reads": [1]}]})";

}  // namespace

TEST_CASE("program plan --graph: text, JSON and the page", "[program]") {
  const files_test::TemporaryFolder folder;
  const std::string file = folder / "toy.json", page = folder / "toy.html";
  files_test::write_text_file(file, toy);
  const std::optional<Output> text = run(folder, "plan --graph '" + file + "' --html '" + page + "'");
  if (!text) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  REQUIRE(text->status == 0);
  // At the backward of relu: h and the gradients of a and h.
  CHECK(files_test::contains(text->out, "peak                                  12,000"));
  const std::string html = files_test::read_text_file(page);
  CHECK(files_test::contains(html, "toy &lt;net&gt;"));
  CHECK(files_test::contains(html, "recomputed, in order: 0 nodes"));
  const Output json = *run(folder, "plan --graph '" + file + "' --json --budget 12096");
  REQUIRE(json.status == 0);
  CHECK(nlohmann::json::parse(json.out)["peak_bytes"] == 12'000);
  CHECK(nlohmann::json::parse(json.out)["kept"] == nlohmann::json({1}));

  const Output small = *run(folder, "plan --graph '" + file + "' --budget 1000");
  CHECK(small.status == 3);
  CHECK(files_test::contains(small.error, "no plan of the graph keeps 1000 B; the smallest needs 11.81 KiB (12"));
  const Output both = *run(folder, "plan gpt2 --graph '" + file + "'");
  CHECK(both.status == 2);
  CHECK(files_test::contains(both.error, "MODEL: expected a model to plan, got --graph"));
  CHECK(files_test::contains(run(folder, "plan --budget 1MiB")->error, "expected MODEL, got none"));
  files_test::write_text_file(file, "{\"version\": 2}");
  CHECK(run(folder, "plan --graph '" + file + "'")->status == 2);
}

TEST_CASE("program plan --graph: PyTorch carries plans out", "[program]") {
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  if (program == nullptr) return thimble_test::skip("THIMBLE_PROGRAM names no program");
  const int status = files_test::run_oracle("torch_plan_check.py", "'" + std::string(program) + "'");
  if (status == 77) return thimble_test::skip("THIMBLE_PYTHON names no Python with PyTorch");
  CHECK(status == 0);
}
