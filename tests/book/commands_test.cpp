// Every command of the book and of README prints the output on the page.

#include <set>

#include "page_check.h"

namespace {

/// The pages with commands.
std::vector<book::Chapter> pages() {
  std::vector<book::Chapter> list = book::chapters();
  for (const char* const path : {"README.md", "docs/book/README.md"}) {
    list.push_back({.path = path, .text = files_test::read_text_file(path)});
  }
  return list;
}

}  // namespace

TEST_CASE("book: commands print what is shown", "[book]") {
  std::size_t commands = 0;
  for (const book::Chapter& page : pages()) commands += book::check_shown(page);
  CHECK(commands >= pages().size());
}

TEST_CASE("book: every block of commands runs", "[book]") {
  for (const book::Chapter& page : pages()) book::check_blocks(page);
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

TEST_CASE("book: the index of commands is the program's", "[book]") {
  const book::Result result = book::run("thimble book --index index.md && cat index.md");
  CHECK(result.status == 0);
  INFO("write it anew: thimble book --index docs/book/commands.md");
  CHECK(files_test::read_text_file("docs/book/commands.md") == result.output);
}

TEST_CASE("book: blocks and commands are found in a page", "[book]") {
  const std::vector<book::Script> scripts = book::scripts(
      "<!-- run each -->\n```sh\na\nb # c\n```\n\n<!-- instead: d e -->\n<!-- instead: f -->\n```sh\ng\nh\n```\n"
      "<!-- not run: long -->\n```sh\ni\n```\n```sh\nj \\\n  k\n```\n```\nl\n```\n```\n$ m\nn\n```\n"
      "<!-- run: o -->\n```\n$ o\np\n```\n```\nthimble plan mlp\n```\n```text\nthimble plan mlp\n```\n");
  REQUIRE(scripts.size() == 6);
  CHECK(scripts[0].is_run_each);
  CHECK(scripts[0].line == 3);
  CHECK(scripts[0].commands == std::vector<std::string>{"a", "b # c"});
  CHECK_FALSE(scripts[1].is_run_each);
  CHECK(scripts[1].instead == std::vector<std::string>{"d e", "f"});
  CHECK(scripts[2].why_not == "long");
  CHECK_FALSE(scripts[3].is_run_each);
  CHECK(scripts[3].why_not.empty());
  CHECK(scripts[3].commands == std::vector<std::string>{"j   k"});
  CHECK(scripts[4].commands == std::vector<std::string>{"m"});
  CHECK_FALSE(scripts[4].is_unmarked_output);
  CHECK(scripts[5].is_unmarked_output);
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

TEST_CASE("book: new figures take the places of old ones", "[book]") {
  const auto now = [](const char* shown, const char* printed) {
    return book::renewed(book::lines_of(shown), book::lines_of(printed));
  };
  CHECK(now("a 1\n...\nb  1,024 B\n", "a 2\nx\nb 12,288 B\n") == book::lines_of("a 2\n...\nb 12,288 B\n"));
  CHECK(now("a 1\n...\n", "a 2\nb\n") == book::lines_of("a 2\n...\n"));
  CHECK(now("held 3 %, in \u2026 ms (b 1)\n", "held 4.5 %, in 17.2 ms (b 2)\n") ==
        book::lines_of("held 4.5 %, in \u2026 ms (b 2)\n"));
  CHECK(now("a 1\n...\nb 1\n", "a 1\nc 1\n") == book::lines_of("a 1\nc 1\n"));
  CHECK(now("a \u2026\n...\n", "a 3\nb\n") == book::lines_of("a \u2026\n...\n"));
  CHECK(now("...\n2 1\n", "1 5\n2 5\n") == book::lines_of("...\n2 5\n"));
  CHECK(now("a (1)\n", "a [1]\n") == book::lines_of("a [1]\n"));
}
