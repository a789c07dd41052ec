// Every command of the book says what the book shows. `thimble_book_tests '[.write]'` puts what it says into the pages,
// where they differ.

#include <cstdio>
#include <fstream>

#include "chapters.h"
#include "house/sources.h"
#include "support/catch.h"
#include "support/files.h"

namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("book: commands say what is shown", "[book]") {
  std::size_t commands = 0;
  std::vector<book::Chapter> pages = book::chapters();
  pages.push_back({.path = "README.md", .text = files_test::read_text_file("README.md")});
  for (const book::Chapter& chapter : pages) {
    for (const book::Shown& shown : book::shown_commands(chapter.text)) {
      ++commands;
      const book::Result result = book::run(shown.command);
      INFO(chapter.path << ": " << shown.command << "\nshown:\n" << joined(shown.lines) << "said:\n" << result.output);
      CHECK(shown.is_prompted);
      CHECK(result.status >= 0);
      CHECK(book::matches(shown.lines, book::lines_of(result.output)));
    }
  }
  CHECK(commands >= pages.size());
}

TEST_CASE("book: the index of commands is the program's", "[book]") {
  const book::Result result = book::run("thimble book --index index.md && cat index.md");
  CHECK(result.status == 0);
  INFO("write it anew: thimble book --index docs/book/commands.md");
  CHECK(files_test::read_text_file("docs/book/commands.md") == result.output);
}

TEST_CASE("book: the comparison finds what it is for", "[book]") {
  const auto is_same = [](const char* shown, const char* said) {
    return book::matches(book::lines_of(shown), book::lines_of(said));
  };
  CHECK(is_same("a\nb\n", "a\nb\n"));
  CHECK_FALSE(is_same("a\nb\n", "a\nc\n"));
  CHECK_FALSE(is_same("a\n", "a\nb\n"));
  CHECK_FALSE(is_same("a\nb\n", "a\n"));
  CHECK(is_same("took \u2026 ms, found\n", "took 12.5 ms, found\n"));
  CHECK_FALSE(is_same("took \u2026 ms, found\n", "took 12.5 ms, lost\n"));
  CHECK_FALSE(is_same("took \u2026 ms\n", "it took 3 ms\n"));
  CHECK(is_same("a\n...\nd\n", "a\nb\nc\nd\n"));
  CHECK(is_same("a\n...\n", "a\nb\nc\n"));
  CHECK_FALSE(is_same("a\n...\nd\n", "a\nb\nc\n"));
}

TEST_CASE("book: write what commands say", "[.write]") {
  for (const book::Chapter& chapter : book::chapters()) {
    std::vector<std::string> lines = book::lines_of(chapter.text);
    std::vector<book::Shown> all = book::shown_commands(chapter.text);
    for (auto shown = all.rbegin(); shown != all.rend(); ++shown) {
      const std::vector<std::string> said = book::lines_of(book::run(shown->command).output);
      if (book::matches(shown->lines, said)) continue;
      std::printf("%s: %s\n", chapter.path.c_str(), shown->command.c_str());
      const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(shown->first_line);
      lines.insert(lines.erase(begin, begin + static_cast<std::ptrdiff_t>(shown->lines.size())), said.begin(),
                   said.end());
    }
    files_test::write_text_file(chapter.path, joined(lines));
  }
}
