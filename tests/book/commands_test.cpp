// Every command of the book says what the book shows. `thimble_book_tests '[.write]'` puts what it says into the pages,
// where they differ.

#include <cstdio>
#include <fstream>
#include <regex>
#include <set>

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

/// Where a reader finds commands.
std::vector<book::Chapter> pages() {
  std::vector<book::Chapter> list = book::chapters();
  for (const char* const path : {"README.md", "docs/book/README.md"}) {
    list.push_back({.path = path, .text = files_test::read_text_file(path)});
  }
  return list;
}

}  // namespace

TEST_CASE("book: commands say what is shown", "[book]") {
  std::size_t commands = 0;
  for (const book::Chapter& chapter : pages()) {
    for (const book::Shown& shown : book::shown_commands(chapter.text)) {
      ++commands;
      const book::Result result = book::run(shown.command);
      INFO(chapter.path << ": " << shown.command << "\nshown:\n" << joined(shown.lines) << "said:\n" << result.output);
      CHECK(shown.is_prompted);
      CHECK(result.status == 0);
      CHECK(book::matches(shown.lines, book::lines_of(result.output)));
    }
  }
  CHECK(commands >= pages().size());
}

TEST_CASE("book: every block of commands runs", "[book]") {
  // What builds the program and this test, and runs it.
  const std::set<std::string> not_run = {"./test.sh        # builds everything and runs all tests"};
  for (const book::Chapter& page : pages()) {
    for (const book::Script& script : book::scripts(page.text)) {
      const book::Place place;
      INFO(page.path << ", line " << script.line);
      const int marks =
          (script.is_run_each ? 1 : 0) + (script.instead.empty() ? 0 : 1) + (script.why_not.empty() ? 0 : 1);
      CHECK(marks == 1);
      if (!script.why_not.empty()) {
        for (const std::string& command : script.commands) CHECK(not_run.contains(command));
        continue;
      }
      if (!script.instead.empty()) CHECK(script.instead.size() == script.commands.size());
      for (const std::string& command : script.instead.empty() ? script.commands : script.instead) {
        const book::Result result = place.run(command);
        INFO(command << "\n" << result.output);
        CHECK(result.status == 0);
      }
    }
  }
}

TEST_CASE("book: every command within the prose runs", "[book]") {
  std::set<std::string> commands;
  for (const book::Chapter& page : pages()) {
    for (const std::string& command : book::commands_in_prose(page.text)) commands.insert(command);
  }
  for (const std::string& command : commands) {
    const book::Result result = book::run(command);
    INFO(command << "\n" << result.output);
    CHECK(result.status == 0);
  }
  CHECK_FALSE(commands.empty());
}

TEST_CASE("book: README's tables have the program's figures", "[book]") {
  const std::string readme = files_test::read_text_file("README.md");
  const std::string kept =
      book::run("thimble reproduce resnet-batch gpt-layer --quick --out report >/dev/null 2>&1; cat report/*.csv")
          .output;
  static const std::regex bytes(R"(\| [^|]+ \| (\d[\d,]+\d) \| (\d[\d,]+\d) \|)");
  static const std::regex budget(R"(\| ([\d.]+) (G[i]?B) \| ([\d.]+ GiB) \| ([\d.]+ %) \|)");
  std::size_t experiments = 0, budgets = 0;
  for (const std::string& line : book::lines_of(readme)) {
    INFO(line);
    std::smatch match;
    if (std::regex_match(line, match, bytes)) {
      std::string theory = match[1], predicted = match[2];
      std::erase(theory, ',');
      std::erase(predicted, ',');
      CHECK(kept.find("," + theory + "," + predicted + "," + predicted + ",") != std::string::npos);
      ++experiments;
    } else if (std::regex_match(line, match, budget)) {
      const std::string size = match[1].str() + match[2].str();
      const std::string plan = book::run("thimble plan resnet50 --batch 184 --budget " + size).output;
      static const std::regex peak(R"(  peak \(committed\) +[\d,]+ +([\d.]+ GiB)\n)");
      std::smatch said;
      REQUIRE(std::regex_search(plan, said, peak));
      CHECK(said[1] == match[3]);
      CHECK(plan.find("\ntime: " + match[4].str() + " over keeping everything") != std::string::npos);
      ++budgets;
    }
  }
  CHECK(experiments == 4);
  CHECK(budgets == 4);
}

TEST_CASE("book: the index of commands is the program's", "[book]") {
  const book::Result result = book::run("thimble book --index index.md && cat index.md");
  CHECK(result.status == 0);
  INFO("write it anew: thimble book --index docs/book/commands.md");
  CHECK(files_test::read_text_file("docs/book/commands.md") == result.output);
}

TEST_CASE("book: blocks and commands are found in a page", "[book]") {
  const std::vector<book::Script> scripts = book::scripts(
      "<!-- run each -->\n```sh\na\nb # c\n```\n\n<!-- instead: d e -->\n<!-- instead: f -->\n```sh\ng\nh\n```\n"
      "<!-- not run: long -->\n```sh\ni\n```\n```sh\nj\n```\n```\nk\n```\n");
  REQUIRE(scripts.size() == 4);
  CHECK(scripts[0].is_run_each);
  CHECK(scripts[0].line == 3);
  CHECK(scripts[0].commands == std::vector<std::string>{"a", "b # c"});
  CHECK_FALSE(scripts[1].is_run_each);
  CHECK(scripts[1].instead == std::vector<std::string>{"d e", "f"});
  CHECK(scripts[2].why_not == "long");
  CHECK_FALSE(scripts[3].is_run_each);
  CHECK(scripts[3].why_not.empty());
  CHECK(book::commands_in_prose("`thimble plan`, `thimble plan mlp --batch 2`; `thimble plan mlp --trace FILE`\n"
                                "`thimble train mlp ... --steps 3` and `thimble models`\n") ==
        std::vector<std::string>{"thimble plan mlp --batch 2"});
  CHECK(book::run("false").status == 1);
  CHECK(book::run("true; echo 'a b'").output == "a b\n");
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
