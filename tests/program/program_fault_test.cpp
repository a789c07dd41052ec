// What the program says and how it ends after a fault: statuses, lost output, names that a terminal would obey.

#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/safetensors.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using files_test::write_text_file;
namespace fs = std::filesystem;

std::int64_t steps_of(const std::string& path) {
  return nn::parse_checkpoint_info(SafetensorsReader(path).header(), path).step_count;
}

const std::string command =
    "train char-gpt --data synthetic --layers 1 --heads 2 --width 16 --seq 16 --batch 2 "
    "--eval-batches 1 ";

}  // namespace

TEST_CASE("reliability: exit statuses of faults", "[reliability][program]") {
  const TemporaryFolder folder;
  const auto status = [&](const std::string& arguments) { return program_test::run(folder, arguments); };
  const std::string save = "--save '" + (folder / "x") + "' ";
  const auto diverged = status(command + save +
                               "--steps 30 --optimizer sgd --lr 1e39 --schedule constant --warmup 0 "
                               "--clip 0 --save-every 1 --json");
  if (!diverged) {
    thimble_test::skip("THIMBLE_PROGRAM does not name the program");
    return;
  }
  CHECK(diverged->status == 4);
  CHECK(contains(diverged->error, "thimble: step 1: "));
  CHECK(contains(diverged->error, "training has stopped, and there is no checkpoint\n"));
  CHECK(nlohmann::json::parse(diverged->out).at("end") == "diverged");
  CHECK_FALSE(fs::exists(folder / "x"));

  for (const char* flag : {"--save", "--save-weights", "--resume", "--log"}) {
    const auto empty = status(command + "--steps 2 " + flag + " ''");
    CHECK(empty->status == 2);
    CHECK(contains(empty->error, std::string(flag) + ": expected a value, got an empty text"));
  }
  CHECK(status(command + "--steps 2 --lr 0.001 " + save)->status == 0);
  const auto changed = status(command + "--steps 3 --lr 0.002 --resume '" + (folder / "x") + "'");
  CHECK(changed->status == 0);
  CHECK(contains(changed->error, "thimble: --resume: the recipe is another: --lr 0.001 -> 0.002, --steps 2 -> 3\n"));

  const char* const path = std::getenv("THIMBLE_PROGRAM");
  const auto shell = [&](const std::string& line) {
    const int result = std::system(("P='" + std::string(path) + "'; E='" + (folder / "e") + "'; " + line).c_str());
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
  };
  if (fs::exists("/dev/full")) {
    CHECK(shell("\"$P\" models > /dev/full 2> \"$E\"") == 6);
    CHECK(contains(read_text_file(folder / "e"), "standard output could not be written"));
    CHECK(shell("\"$P\" models --json > /dev/full 2> \"$E\"") == 6);
    CHECK(shell("\"$P\" plan mlp --budget 1KiB > /dev/full 2> \"$E\"") == 3);  // the worse of two
    fs::remove(folder / "x");
    CHECK(shell("\"$P\" " + command + save + "--steps 2 > /dev/full 2> \"$E\"") == 6);
    CHECK(steps_of(folder / "x") == 2);
  }
  // Nobody reads, neither the report nor the progress: the run goes on, and its checkpoint is there.
  fs::remove(folder / "x");
  CHECK(shell("{ { \"$P\" " + command + save + "--steps 40; echo $? > \"$E\"; } 2>&1 | true; }") == 0);
  CHECK(read_text_file(folder / "e") == "6\n");
  CHECK(steps_of(folder / "x") == 40);
}

TEST_CASE("reliability: names reach a terminal without what it obeys", "[reliability][program]") {
  const TemporaryFolder folder;
  const auto missing = program_test::run(folder, "inspect \"$(printf '/no/\\033[31mfile')\"");
  if (!missing) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  CHECK(missing->status == 2);
  CHECK(contains(missing->error, "/no/\\x1b[31mfile"));
  CHECK_FALSE(contains(missing->error, "\x1b"));
  write_text_file(folder / "t", "{\"format\": \"thimble cost model 1\"");
  const auto times =
      program_test::run(folder, command + "--steps 2 --budget 64MiB --profile-file '" + (folder / "t") + "'");
  CHECK(times->status == 2);
  CHECK(contains(times->error, "is not JSON from here on"));
  CHECK_FALSE(contains(times->error, "json.exception"));
}
