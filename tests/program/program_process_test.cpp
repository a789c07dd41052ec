// `thimble` and the process around its arena: reports, refusals and their statuses.

#include <cstddef>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/sanitizer.h"

using files_test::contains;
using files_test::TemporaryFolder;

namespace {

const std::string sizes = "char-gpt --layers 2 --heads 2 --width 48 --seq 32 --batch 4 ";
const std::string train = "train " + sizes + "--data synthetic --steps 4 --eval-batches 2 --json ";

std::size_t sum_of_parts(const nlohmann::json& json) {
  std::size_t sum = 0;
  for (const auto& [name, bytes] : json.at("outside").items()) sum += bytes.get<std::size_t>();
  return sum;
}

}  // namespace

TEST_CASE("program: plan and train state what is outside of the arena, and train keeps it", "[program][process]") {
  const TemporaryFolder folder;
  const auto planned = program_test::run(folder, "plan " + sizes + "--data synthetic --json");
  if (!planned) return;
  REQUIRE(planned->status == 0);
  const nlohmann::json plan = nlohmann::json::parse(planned->out);
  CHECK(plan.at("outside_bytes") == sum_of_parts(plan));
  CHECK(plan.at("process_bytes") == plan.at("peak_bytes").get<std::size_t>() + sum_of_parts(plan));
  const auto text = program_test::run(folder, "plan " + sizes);
  CHECK(contains(text->out, "outside of the arena"));
  CHECK(contains(text->out, "the process"));

  const auto trained = program_test::run(folder, train + "--save '" + (folder / "c") + "'");
  REQUIRE(trained->status == 0);
  const nlohmann::json report = nlohmann::json::parse(trained->out);
  CHECK(report.at("outside_bytes") == sum_of_parts(report));
  CHECK(report.at("differences") == "");
  const auto peak = report.at("process_peak_bytes").get<std::size_t>();
  CHECK(peak <= report.at("predicted_peak_bytes").get<std::size_t>() + sum_of_parts(report));
  CHECK(report.at("outside").at("data_bytes").get<std::size_t>() >= (std::size_t{1} << 20));  // the generated text
}

TEST_CASE("program: a budget for the process", "[program][process]") {
  const TemporaryFolder folder;
  const auto plain = program_test::run(folder, train);
  if (!plain) return;
  REQUIRE(plain->status == 0);
  const nlohmann::json whole = nlohmann::json::parse(plain->out);
  const std::size_t need =
      whole.at("predicted_peak_bytes").get<std::size_t>() + whole.at("outside_bytes").get<std::size_t>();
  const std::size_t budget = need + (std::size_t{4} << 20);
  const auto within = program_test::run(folder, train + "--process-budget " + std::to_string(budget));
  INFO(within->error);
  REQUIRE(within->status == 0);
  const nlohmann::json report = nlohmann::json::parse(within->out);
  CHECK(report.at("process_budget_bytes") == budget);
  CHECK(report.at("budget_bytes").get<std::size_t>() < budget);
  CHECK(report.at("process_peak_bytes").get<std::size_t>() <= budget);
  CHECK(report.at("loss_last") == whole.at("loss_last"));
  // The promise includes 10,000 events of placed steps.
  const auto deep = program_test::run(folder,
                                      "train char-gpt --layers 120 --heads 4 --width 64 --seq 64 --batch 4 --steps 1 "
                                      "--eval-batches 1 --data synthetic --json --process-budget 150MiB");
  REQUIRE(deep->status == 0);
  const nlohmann::json deepest = nlohmann::json::parse(deep->out);
  CHECK(deepest.at("predicted_peak_bytes").get<std::size_t>() + sum_of_parts(deepest) <= std::size_t{150} << 20);
  for (const std::string& command : {train, "plan " + sizes}) {
    const auto refused = program_test::run(folder, command + "--process-budget 1MiB");
    CHECK(refused->status == 3);
    CHECK(contains(refused->error, "--process-budget: 1.00 MiB"));
    CHECK(contains(refused->error, "code "));
  }
  const auto device = program_test::run(folder, "plan " + sizes + "--device cuda --process-budget 1GiB");
  CHECK(device->status == 2);
}

TEST_CASE("program: a limit of the kernel without room is refused before the first step", "[program][process]") {
  const TemporaryFolder folder;
  const auto plain = program_test::run(folder, train);
  if (!plain) return;
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  const std::string big =
      "train char-gpt --layers 4 --heads 4 --width 256 --seq 64 --batch 8 --steps 1 --data synthetic";
  const std::string line = std::string("ulimit -d 40960; exec '") + program + "' " + big + " 2> '" +
                           (folder / "refused.txt") + "' > /dev/null";
  const int status = std::system(line.c_str());
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 3);
  const std::string error = files_test::read_text_file(folder / "refused.txt");
  for (const char* part : {"the run needs", "RLIMIT_DATA of 40.00 MiB", "would fit", "nothing was begun"}) {
    INFO(part << " in " << error);
    CHECK(contains(error, part));
  }
}

#if !defined(THIMBLE_TEST_HAS_SANITIZER)  // its shadow memory takes more addresses than any limit here
TEST_CASE("program: what the system refuses to give has status 3, wherever it is asked for", "[program][process]") {
  const TemporaryFolder folder;
  const auto plain = program_test::run(folder, train);
  if (!plain) return;
  const char* const program = std::getenv("THIMBLE_PROGRAM");
  const std::string commands[] = {train, train + "--budget 6MiB ",
                                  "plan resnet18 --width 8 --image 32 --batch 8 --budget 3MiB", train + "--ranks 2 "};
  int refused = 0;
  for (const std::string& command : commands) {
    for (const char* const limit : {"-v 22000", "-v 26000", "-v 34000", "-v 60000", "-d 6000", "-d 9000", "-d 14000"}) {
      const std::string line = std::string("ulimit ") + limit + "; exec '" + program + "' " + command + " 2> '" +
                               (folder / "refused.txt") + "' > /dev/null";
      const int status = std::system(line.c_str());
      REQUIRE(WIFEXITED(status));
      const std::string error = files_test::read_text_file(folder / "refused.txt");
      INFO("ulimit " << limit << ": " << command << "\n" << error);
      CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
      if (WEXITSTATUS(status) == 0) continue;
      ++refused;
      CHECK(error.starts_with("thimble: "));
      CHECK_FALSE(contains(error, "std::"));
    }
  }
  CHECK(refused > 4);
}
#endif
