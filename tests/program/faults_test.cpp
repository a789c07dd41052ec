// Deliberate faults: the program is killed and signalled while it trains, and bits of its checkpoints are flipped.
// Nothing is lost, nothing wrong is loaded, and every resumed run ends with the bytes of an undisturbed run.
//
// A short form runs as a test. THIMBLE_FAULTS=full makes the number in docs/reliability.md (bench/faults.sh).

#include <sys/wait.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/models/training/checkpoints.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/safetensors.h>

#include "spawned.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"
#include "support/tensor_bytes.h"
#include "support/trained.h"

namespace faults_test {

using namespace thimble;
using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using files_test::write_text_file;
using spawned_test::sleep_ms;
using spawned_test::Spawned;
namespace fs = std::filesystem;

struct Counts {
  int kills = 20, kills_of_one_id = 5, signals = 10, flips = 200;
};

Counts counts() {
  const char* const form = std::getenv("THIMBLE_FAULTS");
  if (form == nullptr || std::string(form) != "full") return {};
  return {.kills = 200, .kills_of_one_id = 50, .signals = 50, .flips = 2000};
}

double ms_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Trains a tiny GPT with the program, from the checkpoint `x` if it exists.
class Trainer {
 public:
  Trainer(std::string program, const TemporaryFolder& folder, int steps, std::string more)
      : program_(std::move(program)), folder_(folder), steps_(steps), more_(std::move(more)) {}

  std::string path() const { return folder_ / "x"; }
  int steps() const { return steps_; }
  bool has_checkpoint() const { return fs::exists(path()); }

  std::vector<std::string> arguments() const {
    std::string line =
        "train char-gpt --data synthetic --layers 1 --heads 2 --width 16 --seq 16 --batch 2 --dropout 0.1 "
        "--eval-batches 2 --steps " +
        std::to_string(steps_) + " " + more_ + " --save " + path();
    if (has_checkpoint()) line += " --resume " + path();
    std::vector<std::string> list{program_};
    std::istringstream words(line);
    for (std::string word; words >> word;) list.push_back(word);
    return list;
  }
  std::unique_ptr<Spawned> start(bool is_first = false) const {
    return std::make_unique<Spawned>(arguments(), folder_ / "out", folder_ / "error", is_first);
  }
  std::string error() const {
    return fs::exists(folder_ / "error") ? read_text_file(folder_ / "error") : std::string();
  }

  /// Steps of the checkpoint, after verifying every tensor's checksum; -1 without a checkpoint. Throws FileError.
  std::int64_t checked_steps() const {
    if (!has_checkpoint()) return -1;
    const SafetensorsReader file(path());
    for (const SafetensorsEntry& entry : file.header().tensors) {
      if (!entry.crc32c) throw FileError(path(), 0, "no sums");
      file.verify(entry);
    }
    return nn::parse_checkpoint_info(file.header(), path()).step_count;
  }
  std::size_t temporary_files() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path())) count += entry.path().extension() == ".tmp";
    return count;
  }

 private:
  std::string program_;
  const TemporaryFolder& folder_;
  int steps_;
  std::string more_;
};

struct Tally {
  int kills = 0, finished = 0, while_saving = 0;
  std::set<std::int64_t> steps;  // of checkpoints found after a kill
};

/// Kills runs at random moments, `kills` times in all; each run resumes the one before. When a chain completes its
/// steps, compares the file with `whole` and starts another chain.
Tally kill_runs(const Trainer& trainer, const std::string& whole, double run_ms, int kills, bool is_first,
                std::uint32_t seed) {
  std::mt19937 random(seed);
  Tally tally;
  std::int64_t before = trainer.checked_steps();
  while (tally.kills < kills) {
    const auto run = trainer.start(is_first);
    REQUIRE(run->is_started());
    sleep_ms(std::uniform_real_distribution<double>(0, run_ms)(random));
    const int end = run->kill_and_wait();
    if (end == -SIGKILL) {
      ++tally.kills;
    } else {
      INFO(trainer.error());
      REQUIRE(end == 0);
    }
    tally.while_saving += trainer.temporary_files() > 0 ? 1 : 0;
    CHECK(trainer.temporary_files() <= 2);  // the new file and the previous one; earlier kills left nothing
    const std::int64_t steps = trainer.checked_steps();
    CHECK(steps >= before);  // no saved step is lost
    tally.steps.insert(steps);
    before = steps;
    if (steps < trainer.steps()) continue;  // a kill may come after the last checkpoint, too
    ++tally.finished;
    CHECK(read_text_file(trainer.path()) == whole);
    fs::remove(trainer.path());
    before = -1;
  }
  // Completes the last chain.
  if (trainer.has_checkpoint()) {
    const auto run = trainer.start(is_first);
    INFO(trainer.error());
    REQUIRE(run->wait() == 0);
    CHECK(read_text_file(trainer.path()) == whole);
    CHECK(trainer.temporary_files() == 0);
    ++tally.finished;
  }
  return tally;
}

const char* program() {
  const char* const path = std::getenv("THIMBLE_PROGRAM");
  if (path == nullptr) WARN("SKIPPED: THIMBLE_PROGRAM does not name the program");
  return path;
}

}  // namespace faults_test

using namespace faults_test;

TEST_CASE("faults: a run that is killed goes on from its last checkpoint, bit by bit", "[faults]") {
  if (program() == nullptr) return;
  for (const bool is_first : {false, true}) {
    const TemporaryFolder folder;
    const Trainer trainer(program(), folder, 12, "--save-every 1");
    if (is_first) {
      const auto probe = trainer.start(true);
      if (!probe->is_started() || probe->wait() != 0) {
        WARN("SKIPPED: no namespaces of process ids here, so none repeats");
        return;
      }
      fs::remove(trainer.path());
    }
    const double run_ms = ms_of([&] { REQUIRE(trainer.start(is_first)->wait() == 0); });
    const std::string whole = read_text_file(trainer.path());
    fs::remove(trainer.path());
    const int kills = is_first ? counts().kills_of_one_id : counts().kills;
    const Tally tally = kill_runs(trainer, whole, 1.1 * run_ms, kills, is_first, is_first ? 2 : 1);
    CHECK(tally.kills == kills);
    CHECK(tally.finished > 0);
    CHECK(tally.steps.size() > 2);  // kills came at several steps
    std::printf("faults: %d kills%s, %d of them while a checkpoint was written; %d runs went on to their end\n",
                tally.kills, is_first ? " with one process id" : "", tally.while_saving, tally.finished);
  }
}

TEST_CASE("faults: a signal ends a run after its step, with a checkpoint", "[faults]") {
  if (program() == nullptr) return;
  const TemporaryFolder folder;
  const Trainer trainer(program(), folder, 400, "");
  const double run_ms = ms_of([&] { REQUIRE(trainer.start()->wait() == 0); });
  const std::string whole = read_text_file(trainer.path());
  std::mt19937 random(3);
  const std::vector<std::pair<int, std::string>> signals{
      {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}};
  int sent = 0, stopped = 0;
  for (int tries = 0; sent < counts().signals && tries < 20 * counts().signals; ++tries) {
    const auto& [number, name] = signals[static_cast<std::size_t>(sent) % signals.size()];
    INFO(name);
    fs::remove(trainer.path());
    fs::remove(folder / "error");
    const auto run = trainer.start();
    while (run->is_running() && !contains(trainer.error(), "step ")) sleep_ms(1);
    sleep_ms(std::uniform_real_distribution<double>(0, run_ms / 4)(random));
    if (!run->is_running()) continue;  // too late for this run
    run->send(number);
    while (run->is_running()) sleep_ms(1);
    const int end = run->last_ending();
    INFO(trainer.error());
    if (end == 0 && !contains(trainer.error(), "after step ")) continue;  // it came after the last step
    ++sent;
    CHECK(trainer.temporary_files() == 0);
    if (number == SIGUSR1) {
      CHECK(end == 0);
      CHECK(contains(trainer.error(), "' holds step "));
      CHECK(read_text_file(trainer.path()) == whole);
      continue;
    }
    ++stopped;
    CHECK(end == 128 + number);
    CHECK(contains(trainer.error(), "thimble: " + name + ": stopped after step "));
    const std::int64_t steps = trainer.checked_steps();
    CHECK(steps > 0);
    CHECK(contains(trainer.error(), "after step " + std::to_string(steps) + " of 400; "));
    if (steps == 400) continue;
    REQUIRE(trainer.start()->wait() == 0);
    CHECK(read_text_file(trainer.path()) == whole);
  }
  CHECK(sent == counts().signals);
  std::printf("faults: %d signals, %d of them ended a run, which then went on to the same bytes\n", sent, stopped);
}

TEST_CASE("faults: a second SIGINT ends a run at once, and an ignored signal stays ignored", "[faults]") {
  if (program() == nullptr) return;
  const TemporaryFolder folder;
  const Trainer trainer(program(), folder, 100'000'000, "--eval-every 10");  // each evaluation is reported
  {
    const auto run = trainer.start();
    while (run->is_running() && !contains(trainer.error(), "step ")) sleep_ms(5);
    REQUIRE(run->is_running());
    run->send(SIGINT);
    run->send(SIGINT);
    const int end = run->wait();
    CHECK((end == 128 + SIGINT || end == -SIGINT));
  }
  fs::remove(folder / "error");
  {  // repeated SIGTERMs change nothing
    const auto run = trainer.start();
    while (run->is_running() && !contains(trainer.error(), "step ")) sleep_ms(5);
    REQUIRE(run->is_running());
    for (; run->is_running(); sleep_ms(1)) run->send(SIGTERM);
    CHECK(run->last_ending() == 128 + SIGTERM);
    CHECK(trainer.has_checkpoint());
    fs::remove(trainer.path());
  }
  fs::remove(folder / "error");
  const std::vector<std::string> words = trainer.arguments();
  std::string line = "trap '' HUP; exec";
  for (const std::string& word : words) line += " '" + word + "'";
  Spawned run({"/bin/sh", "-c", line}, folder / "out", folder / "error");
  sleep_ms(1000);
  run.send(SIGHUP);
  sleep_ms(200);
  CHECK(run.is_running());
}

TEST_CASE("faults: a flipped bit of a checkpoint is found, or changes nothing", "[faults]") {
  const TemporaryFolder folder;
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 2;
  options.setup.sizes.layers = 1, options.setup.sizes.heads = 2, options.setup.sizes.width = 8;
  options.setup.sizes.sequence = 8;
  options.data = "synthetic", options.steps = 2, options.eval_batches = 1, options.save = folder / "good";
  trained_test::run(options);
  options.save.clear();
  models::Engine engine(options);

  // All state that loading may change.
  const auto state_of = [](models::Training& t) {
    std::vector<std::vector<std::byte>> all;
    for (const auto& p : t.model().parameters()) all.push_back(testing::bytes_of(p.tensor));
    for (const auto& b : t.model().buffers()) all.push_back(testing::bytes_of(b.tensor));
    for (const auto& s : t.optimizer().state()) all.push_back(testing::bytes_of(s.tensor));
    return std::tuple(all, t.optimizer().step_count(), t.optimizer().rate(), t.generator().seed(),
                      t.generator().step());
  };
  const std::string good = read_text_file(folder / "good");
  models::Training loaded(engine.options(), engine.data(), cpu);
  const auto fresh = state_of(loaded);
  loaded.load(folder / "good");
  const auto expected = state_of(loaded);
  REQUIRE(fresh != expected);

  const std::uint64_t header = SafetensorsReader(folder / "good").header().data_offset;
  std::mt19937_64 random(4);
  int refused = 0, harmless = 0;
  for (int i = 0; i < counts().flips; ++i) {
    const bool is_header = i % 2 == 0;
    const std::uint64_t low = is_header ? 0 : header, high = is_header ? header : good.size();
    const std::uint64_t bit = std::uniform_int_distribution<std::uint64_t>(8 * low, 8 * high - 1)(random);
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_text_file(folder / "bad", bad);
    INFO("bit " << bit % 8 << " of byte " << bit / 8);
    models::Training training(engine.options(), engine.data(), cpu);
    bool is_refused = false;
    try {
      training.load(folder / "bad");
    } catch (const Error& error) {
      is_refused = true;
      INFO(error.what());
      CHECK(contains(error.what(), folder / "bad"));
    }
    CHECK((state_of(training) == (is_refused ? fresh : expected)));
    if (!is_header) CHECK(is_refused);
    ++(is_refused ? refused : harmless);
  }
  CHECK(refused > harmless);
  std::printf("faults: %d flipped bits, %d refused, %d without effect on any value\n", counts().flips, refused,
              harmless);
}

// ---- Messages and statuses after a fault: lost output, and names with terminal controls.

namespace {

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
                               "--clip 0 --save-every 1 --json --save-weights '" +
                               (folder / "w") + "'");
  if (!diverged) {
    thimble_test::skip("THIMBLE_PROGRAM does not name the program");
    return;
  }
  CHECK(diverged->status == 4);
  CHECK(contains(diverged->error, "thimble: step 1: "));
  CHECK(contains(diverged->error, "training has stopped, and there is no checkpoint\n"));
  CHECK(nlohmann::json::parse(diverged->out).at("end") == "diverged");
  for (const char* const file : {"x", "w"}) CHECK_FALSE(fs::exists(folder / file));

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
  // No process reads the report or the progress: the run goes on and writes its checkpoint.
  fs::remove(folder / "x");
  CHECK(shell("{ { \"$P\" " + command + save + "--steps 40; echo $? > \"$E\"; } 2>&1 | true; }") == 0);
  CHECK(read_text_file(folder / "e") == "6\n");
  CHECK(steps_of(folder / "x") == 40);
  // Ten lines of progress for the steps that are left.
  const std::string left = status(command + "--steps 60 --resume '" + (folder / "x") + "'")->error;
  for (int step = 41; step <= 60; ++step) {
    CHECK(contains(left, "step " + std::to_string(step) + "/60 ") == (step % 2 == 0));
  }
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
