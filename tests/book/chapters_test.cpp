// Every chapter of the book has a question, code, a command, a picture, three exercises, five lines of summary, and a
// length for one sitting.

#include <filesystem>
#include <regex>

#include "chapters.h"
#include "house/sources.h"
#include "support/catch.h"

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// A page without code blocks and text in backticks.
std::string without_code(const std::string& text) {
  static const std::regex code("`[^`]*`");
  std::string rest;
  bool is_code = false;
  for (const std::string& line : book::lines_of(text)) {
    if (line.starts_with("```")) is_code = !is_code;
    if (!is_code) rest += std::regex_replace(line, code, "") + "\n";
  }
  return rest;
}

}  // namespace

TEST_CASE("book: every chapter has its parts", "[book]") {
  const std::vector<book::Chapter> chapters = book::chapters();
  for (std::size_t i = 0; i < chapters.size(); ++i) {
    const book::Chapter& chapter = chapters[i];
    const std::string number = std::to_string(chapter.number);
    const std::size_t words = book::word_count(book::prose_of(chapter.text));
    INFO(chapter.path << ", " << words << " words");
    CHECK(chapter.number == static_cast<int>(i) + 1);
    CHECK(words >= 1200);
    CHECK(words <= 2500);
    CHECK(chapter.text.starts_with("# " + number + ". "));
    CHECK(count(chapter.text, "\n> ") >= 1);  // the question
    CHECK(count(chapter.text, "$$") >= 2);
    CHECK(count(chapter.text, "<!-- code of ") >= 1);
    CHECK(count(chapter.text, "<!-- run: ") >= 1);
    CHECK(count(chapter.text, "](figures/") >= 1);
    for (const char* const k : {"1", "2", "3"}) {
      CHECK(count(chapter.text, "\n**Exercise " + number + "." + k + ".**") == 1);
    }
    const std::size_t summary = chapter.text.find("\n## Summary\n");
    REQUIRE(summary != std::string::npos);
    CHECK(count(chapter.text.substr(summary), "\n- ") == 5);
    if (i + 1 < chapters.size()) {
      const std::string next = chapters[i + 1].path.substr(std::string(book::folder).size());
      CHECK(count(chapter.text, "](" + next + ")") >= 1);
    }
  }
}

TEST_CASE("book: every exercise has an answer that runs", "[book]") {
  std::string answers;
  for (const house::Source& file : house::all_files()) {
    if (file.path.starts_with("tests/exercises/")) answers += file.text;
  }
  const std::vector<book::Chapter> chapters = book::chapters();
  for (const book::Chapter& chapter : chapters) {
    for (const char* const k : {"1", "2", "3"}) {
      const std::string name = "\"exercise " + std::to_string(chapter.number) + "." + k + ": ";
      INFO(name);
      CHECK(count(answers, name) == 1);
    }
  }
  CHECK(count(answers, "TEST_CASE(\"exercise ") == 3 * chapters.size());
}

TEST_CASE("book: the programs to read in one sitting are short", "[book]") {
  for (const house::Source& file : house::all_files()) {
    const std::size_t lines = count(file.text, "\n");
    if (file.path == "examples/tiny_tape.cpp") CHECK(lines <= 100);
    if (file.path == "examples/toy_rotor.cpp") CHECK(lines <= 80);
    if (file.path.ends_with("_by_hand.cpp")) CHECK(lines <= 120);
  }
}

TEST_CASE("book: links lead somewhere", "[book]") {
  const std::vector<house::Source> files = house::all_files();
  static const std::regex link("\\]\\(([^)#]+)(#[^)]*)?\\)");
  for (const house::Source& file : files) {
    if (!file.path.starts_with("docs/") && file.path != "README.md") continue;
    if (!file.path.ends_with(".md")) continue;
    const std::string base = file.path.substr(0, file.path.rfind('/') + 1), text = without_code(file.text);
    for (std::sregex_iterator match(text.begin(), text.end(), link), end; match != end; ++match) {
      const std::string target = (*match)[1];
      if (target.starts_with("http")) continue;
      const std::string path = std::filesystem::path(base + target).lexically_normal();
      INFO(file.path << " links to " << target);
      CHECK(std::filesystem::exists(path));
    }
  }
}
