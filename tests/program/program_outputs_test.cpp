// Every output of every command: an existing note stays, the command's inputs stay, and the command runs twice with the
// same names.

#include <filesystem>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using files_test::contains;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using files_test::write_text_file;
namespace fs = std::filesystem;

struct Row {
  std::string command;  // {} becomes the folder
  std::string flag;
  std::string input = {};  // a file that the command reads
  std::string mark = {};   // the name of the folder's file
};

std::string in_folder(std::string text, const TemporaryFolder& folder) {
  for (std::size_t at = 0; (at = text.find("{}", at)) != std::string::npos;) text.replace(at, 2, folder.path());
  return text;
}

}  // namespace

TEST_CASE("outputs of every command: two never have one name", "[program]") {
  const TemporaryFolder folder;
  write_text_file(folder / "text", std::string(4000, 'a'));
  write_text_file(folder / "stages", "8:8:1:2\n8:8:1:2\n");
  const std::string sizes = " char-gpt --layers 1 --heads 2 --width 32 --seq 16 --batch 2 --data {}/text";
  const std::pair<std::string, std::vector<std::string>> rows[] = {
      {"train" + sizes + " --ranks 2", {"--save", "--save-weights", "--trace", "--log"}},
      {"train" + sizes + " --lora 2 --profile --budget 1GiB", {"--save", "--profile-file", "--save-adapters"}},
      {"plan" + sizes + " --profile --budget 1GiB",
       {"--html", "--trace", "--csv", "--snapshot", "--save", "--profile-file"}},
      {"chain --file {}/stages", {"--svg", "--staircase"}},
  };
  for (const auto& [command, flags] : rows) {
    for (const std::string& one : flags) {
      for (const std::string& other : flags) {
        if (one == other) continue;
        for (const std::string name : {"{}/out", "{}/text"}) {
          const std::string line = command + " " + one + " " + name + " " + other + " " + name + " --overwrite";
          INFO(line);
          const auto refused = program_test::run(folder, in_folder(line, folder));
          if (!refused) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
          CHECK(refused->status == 2);
          CHECK(contains(refused->error, name == "{}/out" ? "; give another name" : "/text"));
          CHECK_FALSE(fs::exists(folder / "out"));
        }
      }
    }
  }
}

TEST_CASE("book: an index and pictures are two commands", "[program]") {
  const TemporaryFolder folder;
  for (const std::string more : {" --figures out", " 01-bar"}) {
    const auto refused = program_test::run(folder, "book --index " + (folder / "index") + more);
    if (!refused) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
    CHECK(refused->status == 2);
    CHECK(contains(refused->error, "--index: expected no pictures beside it"));
    CHECK_FALSE(fs::exists(folder / "index"));
  }
}

TEST_CASE("outputs of every command: no input and no file of another kind is replaced", "[program]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 23);
  write_text_file(folder / "text", text);
  write_text_file(folder / "lives", "id,lower,upper,size\n0,0,2,8\n1,1,3,8\n");
  write_text_file(folder / "stages", "8:8:1:2\n8:8:1:2\n");
  const std::string sizes = " char-gpt --layers 1 --heads 2 --width 32 --seq 16 --batch 2";
  const std::string train = "train" + sizes + " --data {}/text --steps 2 --eval-batches 1 --threads 1";
  const auto first = program_test::run(folder, in_folder(train + " --save-weights {}/weights", folder));
  if (!first) {
    thimble_test::skip("THIMBLE_PROGRAM does not name the program");
    return;
  }
  REQUIRE(first->status == 0);
  fs::copy_file(files_test::tests_folder() / "fuzz/corpus/tokenizer/gpt2", folder / "tokenizer");
  const std::string plan = "plan" + sizes + " --data {}/text", lora = " --weights {}/weights --lora 2";
  const std::vector<Row> rows{
      {train, "--save", "text"},
      {train, "--save-weights", "text"},
      {train + lora, "--save", "weights"},
      {train + " --weights {}/weights", "--save-weights", "weights"},
      {train + " --tokenizer {}/tokenizer", "--save", "tokenizer"},
      {train + " --ranks 2", "--trace", "text"},
      {train + lora, "--save-adapters", "", "adapter_config.json"},
      {plan, "--html", "text"},
      {plan, "--trace", "text"},
      {plan, "--csv", "text"},
      {plan, "--snapshot", "text"},
      {plan, "--save", "text"},
      {plan + " --profile --budget 1GiB", "--profile-file", "text"},
      {"quantize" + sizes + " --weights {}/weights --data {}/text", "--save", "weights"},
      {"pack {}/lives", "--out", "lives"},
      {"tokenizer encode --data {}/text --tokenizer {}/tokenizer", "--out", "tokenizer"},
      {"tokenizer decode --data {}/text --tokenizer {}/tokenizer", "--out", "tokenizer"},
      {"chain --file {}/stages", "--svg", "stages"},
      {"chain --file {}/stages", "--staircase", "stages"},
      {"pipeline", "--svg"},
      {"reproduce known-schedules --quick --threads 1", "--out", "", "report.html"},
      {"book", "--index"},
      {"book 01-bar", "--figures", "", "01-bar.svg"},
  };
  for (const Row& row : rows) {
    const std::string command = in_folder(row.command, folder) + " " + row.flag + " '";
    INFO(command);
    const auto run = [&](const std::string& name, const std::string& more = "") {
      return *program_test::run(folder, command + (folder / name) + "'" + more);
    };
    if (!row.input.empty()) {
      const std::string before = read_text_file(folder / row.input);
      for (const char* const more : {"", " --overwrite"}) {
        const auto refused = run(row.input, more);
        CHECK(refused.status == 2);
        CHECK(contains(refused.error, row.flag + ": expected a file that is not read"));
        CHECK(read_text_file(folder / row.input) == before);
      }
    }
    const bool is_folder = !row.mark.empty();
    std::string note = "note";
    if (is_folder) fs::create_directory(folder / "note"), note = "note/" + row.mark;
    write_text_file(folder / note, "hello\n");
    const auto refused = run("note");
    CHECK(refused.status == 2);
    CHECK(contains(refused.error, ": expected a new file"));
    CHECK(read_text_file(folder / note) == "hello\n");
    const bool is_text = row.command.starts_with("tokenizer decode");  // its input is numbers
    if (!is_text) {
      for (const char* const more : {"", "", " --overwrite"}) {
        const auto done = run("out", more);
        INFO(done.error);
        CHECK(done.status == 0);
      }
      CHECK(run("note", " --overwrite").status == 0);
      CHECK(read_text_file(folder / note) != "hello\n");
    }
    if (!is_folder && !is_text) {
      const bool is_stream = contains("--html --trace --csv --snapshot --svg --staircase --index", row.flag) ||
                             row.command.starts_with("pack");
      const auto done = *program_test::run(folder, command + "/dev/null'");
      INFO(done.error);
      CHECK(done.status == (is_stream ? 0 : 2));
      CHECK(contains(done.error, "'/dev/null', which is a device, a pipe or standard output") != is_stream);
    }
    fs::remove_all(folder / "note");
    fs::remove_all(folder / "out");
  }
}
