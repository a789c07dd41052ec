// `thimble generate` and `thimble plan --generate`, from a training run of the program to the text.

#include <string>

#include <nlohmann/json.hpp>

#include <thimble/memory/units.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"

namespace program_generate_test {

using files_test::contains;
using files_test::TemporaryFolder;
using nlohmann::json;

/// The JSON that the program prints for these arguments; checks the status.
json printed(const TemporaryFolder& folder, const std::string& arguments) {
  const auto output = program_test::run(folder, arguments + " --json");
  REQUIRE(output);
  INFO(arguments << ": " << output->error);
  REQUIRE(output->status == 0);
  return json::parse(output->out);
}

/// Standard error of a command that must end with this status.
std::string refused(const TemporaryFolder& folder, const std::string& arguments, int status) {
  const auto output = program_test::run(folder, arguments);
  REQUIRE(output);
  CHECK(output->status == status);
  return output->error;
}

}  // namespace program_generate_test

TEST_CASE("program: generate writes what training left behind, in the bytes of the plan", "[program]") {
  using namespace program_generate_test;
  const TemporaryFolder folder;
  const std::string checkpoint = folder / "run.ckpt", sizes = " --layers 1 --heads 2 --width 32 --seq 48";
  const auto trained = program_test::run(
      folder, "train char-gpt --data synthetic --steps 2 --batch 2 --threads 1" + sizes + " --save " + checkpoint);
  if (!trained) {
    WARN("THIMBLE_PROGRAM is not set: the commands were not run");
    return;
  }
  REQUIRE(trained->status == 0);
  const std::string generate = "generate char-gpt --threads 1 --checkpoint " + checkpoint + " --prompt the";
  const json one = printed(folder, generate + " --tokens 20 --context 40 --batch 3 --cache i8");
  CHECK(one["measured_peak_bytes"] == one["predicted_peak_bytes"]);
  CHECK(one["texts"].size() == 3);
  CHECK(one["prompt_tokens"] == 3);
  CHECK(one["cache_bytes_per_token"] == 2 * 2 * (16 + 4));
  CHECK(one["cache_bytes"] == 3 * 40 * 2 * 2 * (16 + 4));
  CHECK(printed(folder, generate + " --tokens 20 --context 40 --batch 3 --cache i8")["texts"] == one["texts"]);
  CHECK(printed(folder, generate + " --tokens 20 --context 40 --batch 3 --cache i8 --seed 2")["texts"] != one["texts"]);
  const auto text = program_test::run(folder, generate + " --tokens 5 --temperature 0");
  CHECK((text && text->status == 0 && text->out.size() == 3 + 5 + 1 && text->out.substr(0, 3) == "the"));

  const json plan = printed(
      folder, "plan char-gpt --generate --threads 1 --batch 3 --context 40 --prompt-tokens 3 --cache i8" + sizes);
  CHECK(plan["cache_bytes"] == one["cache_bytes"]);
  CHECK(plan["peak_bytes"] > 0);
  std::size_t live = 0;
  for (const auto& [name, bytes] : plan["peak_by_category"].items()) live += bytes.get<std::size_t>();
  CHECK(live + plan["hole_bytes"].get<std::size_t>() + plan["rounding_bytes"].get<std::size_t>() == plan["peak_bytes"]);

  // A budget of exactly the peak is enough; one byte less is not.
  const std::size_t peak = plan["peak_bytes"];
  const std::string within =
      "plan char-gpt --generate --threads 1 --batch 3 --context 40 --prompt-tokens 3 --cache i8" + sizes + " --budget ";
  CHECK(printed(folder, within + std::to_string(peak))["feasible"] == true);
  CHECK(contains(refused(folder, within + std::to_string(peak - 1) + " --json", 3),
                 thimble::memory::exact_bytes(peak - 1)));

  CHECK(contains(refused(folder, generate + " --tokens 20 --budget 1KiB", 3),
                 "--budget: " + thimble::memory::exact_bytes(1024)));
  CHECK(contains(refused(folder, generate + " --top-p 0", 2), "--top-p 0"));
  CHECK(contains(refused(folder, generate + " --cache i64", 2),
                 "--cache: expected one of f32, f16, bf16, i8, f8e4m3, f8e5m2, got 'i64'"));
  CHECK(contains(refused(folder, generate + " --tokens 100", 2), "has learned 48 positions"));
  CHECK(contains(refused(folder, "plan char-gpt --cache i8", 2), "--cache: expected --generate; add it"));
  CHECK(contains(refused(folder, "plan char-gpt --generate --optimizer sgd", 2),
                 "--optimizer: expected a training step, got --generate"));
  CHECK(contains(refused(folder, "plan char-gpt --generate --context 256 --budget 1MiB", 3),
                 "--budget: 1.00 MiB (1048576 B)"));
}
