// The program's whole output, pinned: each .txt file in this folder is a transcript of commands. With the generic
// kernels and two threads, a command prints the same bytes, losses and plans on every machine, except for the places in
// `masks`.
//
//   $ COMMAND     a shell line; a file's commands run in order in one folder
//   TEXT          standard output; JSON is broken by json_lines(), and "\" precedes a line that starts with $, #, !,
//                 = or a backslash
//   ! TEXT        standard error
//   = N           the status, unless it is 0
//
// `thimble_golden_tests '[.redraw]'` (tools/figures.sh) runs all commands and writes their output; git shows the
// changes. Read each before you commit it: a pinned mistake is worse than none.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include "program/walks/walk.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"

namespace {

namespace fs = std::filesystem;
using files_test::read_text_file;
using files_test::write_text_file;
using Lines = std::vector<std::string>;
using nlohmann::ordered_json;

/// Times, rates, dates, this machine, and bytes of the program's code and of the process: text at @ becomes ~.
const char* const masks[] = {
    "(planned in |speed +|moved .*, in )@( ms)",
    "( )@( items/s)",
    "( left )@()",
    "(\\b(?:code|heap) )@()",
    "(^    (?:code|heap) +)@()",
    "(^  outside of the arena +)@()",
    "(^  the process +)@()",
    "(^  outside of it +at most )@()",
    "(^  process peak +)@()",
    "(^  process peak .*promised )@()",
    "(run dry in )@( s)",
    "(every distinct rank of the best one in )@( s)",
    "(^  time +)@( -> )",
    "(^  time .* -> )@( ms)",
    "(^  time .*, )@( times as fast)",
    "( stage in )@( ms)",
    "(^ +[0-9]+ +[0-9,]+ +[0-9,]+ +[0-9,]+ .*[KM]iB +)@()",  // a rank's process
    "(tokens, )@( a second)",
    "(; the prompt's [0-9]+ in )@( s)",
    "(\\bThimble )@()",
    "(\"library\":\")@(\")",
};

std::regex pattern_of(std::string mask, const std::string& value) {
  return std::regex(mask.replace(mask.find('@'), 1, value));
}

/// Keys of JSON with such values.
const std::set<std::string> masked_keys = [] {
  std::set<std::string> keys = walk_test::volatile_keys();
  keys.insert({"code_bytes", "process_bytes"});
  return keys;
}();

std::string masked(std::string line) {
  for (const char* const mask : masks)
    line = std::regex_replace(line, pattern_of(mask, "[0-9][0-9.,:e+]*(?: +[0-9.]+)?(?: [KMG]iB)?"), "$1~$2");
  return line;
}

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (!text.empty() && !text.ends_with('\n')) lines.back() += "\\ no newline";
  return lines;
}

void mask_keys(ordered_json& value) {
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (value.is_object() && it->is_number() && masked_keys.contains(it.key())) *it = "~";
    if (it->is_structured()) mask_keys(*it);
  }
}

/// JSON in few lines, broken after commas.
Lines json_lines(ordered_json value) {
  mask_keys(value);
  const std::string text = value.dump();
  Lines lines;
  constexpr std::size_t width = 110;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.size() - at <= width ? text.size() : text.rfind(",\"", at + width) + 1;
    if (end <= at) end = text.find(",\"", at) + 1;  // npos + 1 is 0
    if (end <= at) end = text.size();
    lines.push_back(text.substr(at, end - at));
    at = end;
  }
  return lines;
}

/// The transcript of `command`, run in `folder`.
Lines transcript(const fs::path& folder, const std::string& command) {
  write_text_file(folder / "command.sh", command + "\n");
  const std::string line = "cd '" + folder.string() + "' && sh command.sh >stdout 2>stderr </dev/null";
  const int status = std::system(line.c_str());
  const std::string out = read_text_file(folder / "stdout");
  const ordered_json json = ordered_json::parse(out, nullptr, false);
  Lines result = json.is_structured() ? json_lines(json) : Lines{};
  if (result.empty()) {
    for (const std::string& text : lines_of(out)) {
      const bool is_special = !text.empty() && std::string("$#!=\\").find(text[0]) != std::string::npos;
      result.push_back((is_special ? "\\" : "") + masked(text));
    }
  }
  for (const std::string& text : lines_of(read_text_file(folder / "stderr"))) result.push_back("! " + masked(text));
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code != 0) result.push_back("= " + std::to_string(code));
  return result;
}

/// A command with its output, or comments and empty lines.
struct Entry {
  std::string command;
  Lines lines;
};

std::vector<Entry> entries_of(const fs::path& file) {
  std::vector<Entry> list(1);
  for (const std::string& line : lines_of(read_text_file(file))) {
    if (line.starts_with("$ ")) list.push_back({line.substr(2), {}});
    const bool is_free = line.starts_with("#");
    if (is_free && !list.back().command.empty()) list.emplace_back();
    if (!line.starts_with("$ ")) list.back().lines.push_back(line);
  }
  return list;
}

fs::path golden_folder() { return files_test::tests_folder() / "program/golden"; }

/// A folder with the input files of commands, and scripts:
///   thimble, library      the program, and library.cpp's program
///   pick PATTERN          the lines of JSON with matching keys, except masked keys
///   refuse COMMAND ...    the arguments with the status and the error's text, or "taken"
///   words FILE            a page's text without tags, style and script
struct Place {
  files_test::TemporaryFolder folder;
  Place() {
    const char* const program = std::getenv("THIMBLE_PROGRAM");
    if (program == nullptr) throw std::runtime_error("THIMBLE_PROGRAM names no program");
    const fs::path path = fs::absolute(program);
    fs::create_symlink(path, folder / "thimble");
    fs::create_symlink(path.parent_path() / "thimble_golden_library", folder / "library");
    fs::copy_file(files_test::tests_folder() / "fuzz/corpus/tokenizer/gpt2", folder / "tokenizer.json");
    fs::copy_file(files_test::tests_folder() / "fuzz/corpus/tokenizer/llama3", folder / "other.json");
    std::string text;  // 23 letters in a learnable order
    for (int i = 0; i < 4000; ++i) text += i % 61 == 60 ? '\n' : static_cast<char>('a' + (i * i + i / 7) % 23);
    write_text_file(folder / "text.txt", text);
    const auto script = [&](const std::string& name, const std::string& text) {
      write_text_file(folder / name, text);
      fs::permissions(folder / name, fs::perms::owner_all);
    };
    std::string unmasked = "grep -E \"$1\" | grep -vE '^ *\"(";
    for (const std::string& key : masked_keys) unmasked += key + "|";
    script("pick", unmasked + ")\"' | tr -d ' \\n'; echo\n");
    script("refuse", R"sh(thimble "$@" >refuse.out 2>refuse.err
status=$?
shift
[ $status = 0 ] && echo "$*: taken" || echo "$*: $status $(cat refuse.err)"
)sh");
    script("words", R"sh(awk 'BEGIN { RS = "<" }
/^(style|script)/ { skips = 1 }
/^\/(style|script)/ { skips = 0 }
!skips { text = substr($0, index($0, ">") + 1); gsub(/[ \n]+/, " ", text); if (text !~ /^ ?$/) printf "%s|", text }
END { print "" }' "$1" | fold -w 110
)sh");
    for (const char* const set : {"OMP_NUM_THREADS=2", "THIMBLE_ISA=generic", "LC_ALL=C", "TZ=UTC"}) {
      const std::string word = set;
      setenv(word.substr(0, word.find('=')).c_str(), word.substr(word.find('=') + 1).c_str(), 1);
    }
    setenv("PATH", (folder.path() + ":" + std::getenv("PATH")).c_str(), 1);
  }
};

/// Runs the commands of a file. `redraws` writes their output to the file; otherwise each must print its lines.
void run(const std::string& name, bool redraws) {
  const fs::path file = golden_folder() / (name + ".txt");
  const std::string disk = offload_test::disk_folder();  // some commands offload to their folder
  if (disk.empty()) return;
  setenv("TMPDIR", disk.c_str(), 1);
  const Place place;
  std::string text;
  for (const Entry& entry : entries_of(file)) {
    const Lines lines = entry.command.empty() ? entry.lines : transcript(place.folder.path(), entry.command);
    if (!entry.command.empty()) text += "$ " + entry.command + "\n";
    for (const std::string& line : lines) text += line + "\n";
    if (redraws || lines == entry.lines) continue;
    std::string changes;
    const auto add = [&](const char* mark, const Lines& from, const Lines& other) {
      for (const std::string& line : from) {
        if (std::ranges::find(other, line) == other.end()) changes += mark + line + "\n";
      }
    };
    add("- ", entry.lines, lines);
    add("+ ", lines, entry.lines);
    FAIL_CHECK(name << ".txt: $ " << entry.command << "\n" << changes);
  }
  if (redraws) write_text_file(file, text);
}

const char* const names[] = {"plan", "train", "files", "refusals", "library"};

}  // namespace

TEST_CASE("golden: plan") { run("plan", false); }
TEST_CASE("golden: train") { run("train", false); }
TEST_CASE("golden: files") { run("files", false); }
TEST_CASE("golden: refusals") { run("refusals", false); }
TEST_CASE("golden: library") { run("library", false); }
TEST_CASE("golden: write all outputs anew", "[.redraw]") {
  for (const char* const name : names) {
    SECTION(name) { run(name, true); }  // only one file: -c NAME
  }
}

TEST_CASE("golden: masks hide times and processes, and each hides one") {
  CHECK(masked("step 1/7  loss 4.0102  rate 0.0105  peak 2.00 MiB  11278 items/s  left 0:00:00") ==
        "step 1/7  loss 4.0102  rate 0.0105  peak 2.00 MiB  ~ items/s  left ~");
  CHECK(masked("    code                           15,056,896       14.36 MiB") ==
        "    code                           ~");
  CHECK(masked("    nodes                            1,572,864        1.50 MiB").find('~') == std::string::npos);
  CHECK(masked("  speed            3.11 ms per step, 2.7e+07 items/s") ==
        "  speed            ~ ms per step, ~ items/s");
  std::string all;
  for (const char* const name : names) all += read_text_file(golden_folder() / (std::string(name) + ".txt"));
  for (const std::string& key : masked_keys) {
    INFO(key);
    CHECK(files_test::contains(all, "\"" + key + "\":\"~\""));
  }
  const Lines lines = lines_of(all);
  for (const char* const mask : masks) {
    INFO(mask);
    const std::regex pattern = pattern_of(mask, "~");
    CHECK(std::ranges::any_of(lines, [&](const std::string& line) { return std::regex_search(line, pattern); }));
  }
}
