// What holds for the text of every file: no file grows past one idea, and none names a place that only one machine has.

#include <algorithm>
#include <cctype>

#include "catch.h"
#include "sources.h"

namespace {

constexpr std::ptrdiff_t max_lines = 420;

std::ptrdiff_t line_count(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

/// Absolute paths below these folders exist on one machine, not on the reader's.
std::string machine_path(const std::string& text) {
  for (const std::string folder : {"home", "root", "work", "mnt", "srv", "Users"}) {
    const std::string needle = "/" + folder + "/";
    for (std::size_t at = text.find(needle); at != std::string::npos; at = text.find(needle, at + 1)) {
      const char before = at == 0 ? ' ' : text[at - 1];
      const char after = at + needle.size() < text.size() ? text[at + needle.size()] : ' ';
      const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
      const bool is_absolute = !is_name(before) && std::string_view("._-}/)").find(before) == std::string_view::npos;
      if (is_absolute && is_name(after)) return text.substr(at, text.find_first_of(" \t\n\"'`)", at) - at);
    }
  }
  return {};
}

bool is_text(const std::string& text) { return text.find('\0') == std::string::npos; }

}  // namespace

TEST_CASE("text: no file of code is longer than one idea", "[house]") {
  std::vector<std::string> problems;
  for (const house::Source& file : house::all_files()) {
    if (house::is_code(file.path) && line_count(file.text) > max_lines) {
      problems.push_back(file.path + ": " + std::to_string(line_count(file.text)) + " lines, at most " +
                         std::to_string(max_lines));
    }
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
}

TEST_CASE("text: no file names a path of one machine", "[house]") {
  std::vector<std::string> problems;
  for (const house::Source& file : house::all_files()) {
    if (!is_text(file.text) || file.path == "tests/house/text_test.cpp") continue;  // this file has bad examples
    if (const std::string path = machine_path(file.text); !path.empty()) problems.push_back(file.path + ": " + path);
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
}

TEST_CASE("text: the checks find what they are for", "[house]") {
  CHECK(line_count(std::string(421, '\n')) > max_lines);
  CHECK(machine_path("see /home/ann/data.txt") == "/home/ann/data.txt");
  CHECK(machine_path("\"/root/x\"") == "/root/x");
  CHECK(machine_path("cd /work/main") == "/work/main");
  CHECK(machine_path("docs/work/plan.md and a /work/ b, ${x}/home/y").empty());
  CHECK(machine_path("/usr/include, /tmp/x, /proc/self/status").empty());
}
