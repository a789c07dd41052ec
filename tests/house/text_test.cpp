// Checks of every file's text: its length has a limit, and it names no path of one machine.

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sources.h"
#include "support/catch.h"

namespace {

/// Absolute paths below these folders exist only on one machine.
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

/// The lines of a text, trimmed.
std::vector<std::string> trimmed_lines(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t");
    list.push_back(first == std::string::npos ? "" : line.substr(first, last - first + 1));
  }
  return list;
}

/// Problems with a document's code after a mark `<!-- code of PATH -->`: each line of the block must be in that file.
std::vector<std::string> copied_code(const house::Source& document, const std::vector<house::Source>& files) {
  const std::string mark = "<!-- code of ";
  std::vector<std::string> problems;
  const std::vector<std::string> text = trimmed_lines(document.text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!text[i].starts_with(mark)) continue;
    const std::string path = text[i].substr(mark.size(), text[i].rfind(" -->") - mark.size());
    std::vector<std::string> code;
    for (std::size_t k = i + 2; k < text.size() && text[k] != "```"; ++k) code.push_back(text[k]);
    const auto file = std::find_if(files.begin(), files.end(), [&](const house::Source& f) { return f.path == path; });
    const std::vector<std::string> lines = file == files.end() ? code : trimmed_lines(file->text);
    const bool is_there = file != files.end() && !code.empty() &&
                          std::search(lines.begin(), lines.end(), code.begin(), code.end()) != lines.end();
    if (!is_there)
      problems.push_back(document.path + ": the code after line " + std::to_string(i + 1) + " is not in " + path);
  }
  return problems;
}

/// Comments beyond the last column. clang-format leaves them, because its wrapping breaks lists.
std::vector<std::string> long_comments(const house::Source& file) {
  constexpr std::size_t most_columns = 120;
  std::vector<std::string> problems;
  std::istringstream text(file.text);
  std::string line;
  for (std::size_t number = 1; std::getline(text, line); ++number) {
    const std::size_t first = line.find_first_not_of(' ');
    if (line.size() > most_columns && first != std::string::npos && line.compare(first, 2, "//") == 0) {
      problems.push_back(file.path + ":" + std::to_string(number) + ": a comment of " + std::to_string(line.size()) +
                         " columns");
    }
  }
  return problems;
}

/// Types that user headers declare in the project's namespaces: "Plan" -> "nn/fit/fit.h". Not operators, which share
/// names with layers, nor types of kernels and other inner namespaces.
void add_public_types(const house::Source& file, std::map<std::string, std::set<std::string>>& files_of) {
  static const std::regex declaration(R"(^(?:struct|class|enum class) ([A-Z]\w*)(?: final)?(?: :.*)? \{.*)");
  static const std::regex inner("ops|kernels|_detail|winograd|packing");
  std::istringstream text(file.text);
  bool is_inner = true;  // outside of the project's namespaces
  std::smatch match;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("namespace ")) {
      is_inner = !line.starts_with("namespace thimble") || std::regex_search(line, inner);
    } else if (!is_inner && std::regex_match(line, match, declaration)) {
      files_of[match[1]].insert(file.path);
    }
  }
}

bool is_text(const std::string& text) { return text.find('\0') == std::string::npos; }

}  // namespace

TEST_CASE("text: comments end with the line", "[house]") {
  std::vector<std::string> problems;
  for (const house::Source& file : house::all_files()) {
    if (house::is_code(file.path))
      for (std::string& problem : long_comments(file)) problems.push_back(std::move(problem));
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
  CHECK(long_comments({"a.h", "  // " + std::string(120, 'x') + "\n"}).size() == 1);
  CHECK(long_comments({"a.h", "// " + std::string(117, 'x') + "\n"}).empty());
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

TEST_CASE("text: code of documents that a test runs is that test's", "[house]") {
  const std::vector<house::Source> files = house::all_files();
  std::vector<std::string> problems;
  for (const house::Source& file : files) {
    if (!file.path.ends_with(".md")) continue;
    for (std::string& problem : copied_code(file, files)) problems.push_back(std::move(problem));
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
}

TEST_CASE("text: public types have names of their own", "[house]") {
  std::map<std::string, std::set<std::string>> files_of;
  for (const house::Source& file : house::all_files()) {
    if (house::is_header(file.path) && house::layer_of(file.path) != "tests") add_public_types(file, files_of);
  }
  CHECK(files_of.size() > 300);
  std::vector<std::string> problems;
  for (const auto& [name, paths] : files_of) {
    if (paths.size() > 1) problems.push_back(name + ": " + *paths.begin() + ", " + *paths.rbegin());
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
}

TEST_CASE("text: the checks find what they are for", "[house]") {
  std::map<std::string, std::set<std::string>> files_of;
  const std::string twice = "struct Plan {\nclass Other;\n  struct Inner {\n}  // namespace\n";
  add_public_types({"a.h", "namespace thimble::nn {\n" + twice}, files_of);
  add_public_types({"b.h", "namespace thimble::remat {\n" + twice}, files_of);
  add_public_types({"c.h", "namespace thimble::ops {\n" + twice + "namespace {\n" + twice}, files_of);
  CHECK(files_of == std::map<std::string, std::set<std::string>>{{"Plan", {"a.h", "b.h"}}});
  const auto wrong = [](const std::string& code) {
    return copied_code({"a.md", "<!-- code of a.cpp -->\n```cpp\n" + code + "```\n"},
                       {{"a.cpp", "{\n  x();\n  y();\n}\n"}});
  };
  CHECK(wrong("x();\ny();\n").empty());
  CHECK(wrong("y();\nx();\n").size() == 1);
  CHECK(wrong("").size() == 1);
  CHECK(copied_code({"a.md", "<!-- code of b.cpp -->\n```cpp\nx();\n```\n"}, {}).size() == 1);
  CHECK(machine_path("see /home/ann/data.txt") == "/home/ann/data.txt");
  CHECK(machine_path("\"/root/x\"") == "/root/x");
  CHECK(machine_path("cd /work/main") == "/work/main");
  CHECK(machine_path("docs/work/plan.md and a /work/ b, ${x}/home/y").empty());
  CHECK(machine_path("/usr/include, /tmp/x, /proc/self/status").empty());
}

TEST_CASE("text: code, tests and files stay within their budgets", "[house]") {
  // These limits only shrink. A change that needs more explains it in its commit.
  constexpr std::size_t max_code_lines = 132'697, max_test_lines = 94'607, max_files = 1'392;
  std::size_t code = 0, tests = 0, files = 0;
  for (const house::Source& file : house::all_files()) {
    ++files;
    const auto lines = static_cast<std::size_t>(std::count(file.text.begin(), file.text.end(), '\n'));
    const bool is_document = file.path.starts_with("docs/") || file.path.starts_with("LICENSE") ||
                             file.path.ends_with(".svg") || file.path.ends_with(".csv") || file.path.ends_with(".md");
    if (file.path.starts_with("tests/")) {
      tests += lines;
    } else if (!is_document) {
      code += lines;
    }
  }
  INFO(code << " lines of code, " << tests << " of tests, " << files << " files");
  CHECK(code <= max_code_lines);
  CHECK(tests <= max_test_lines);
  CHECK(files <= max_files);
  CHECK(code > max_code_lines / 2);  // something is counted
}
