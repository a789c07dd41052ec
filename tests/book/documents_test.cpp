// Commands of the documents below docs/: each runs, or states why it cannot. `thimble_book_tests '[.write]'` (run by
// tools/figures.sh) updates the output in the pages.

#include <cstdio>
#include <set>

#include "house/sources.h"
#include "page_check.h"

namespace {

/// Pages for users: all except one-time measurements (docs/lab) and pages that only a GPU can run.
std::vector<book::Chapter> documents() {
  std::vector<book::Chapter> list;
  for (const house::Source& file : house::all_files()) {
    const bool is_page = file.path.starts_with("docs/") && file.path.ends_with(".md");
    const bool is_elsewhere = file.path.starts_with("docs/book/") || file.path.starts_with("docs/lab/");
    if (is_page && !is_elsewhere && !file.path.starts_with("docs/gpu"))
      list.push_back({.path = file.path, .text = file.text});
  }
  return list;
}

}  // namespace

TEST_CASE("documents: commands print what is shown", "[book]") {
  std::size_t shown = 0;
  for (const book::Chapter& page : documents()) shown += book::check_shown(page);
  CHECK(shown >= 10);
}

TEST_CASE("documents: every block of commands runs", "[book]") {
  std::size_t blocks = 0;
  for (const book::Chapter& page : documents()) blocks += book::check_blocks(page);
  CHECK(blocks >= 20);
}

TEST_CASE("documents: every command within the prose runs", "[book]") {
  const std::set<std::string> minutes = {
      "thimble train llama-3.2-1b --data synthetic --seq 64 --batch 1 --steps 2 --lora 8 --base nf4 --head chunked "
      "--budget 2GiB"};
  const std::string reproduce = "thimble reproduce ",
                    experiments = book::run("thimble reproduce none 2>&1 | tr -d '\\n'").output;
  std::set<std::string> commands;
  for (const book::Chapter& page : documents()) {
    for (const std::string& command : book::commands_in_prose(page.text)) {
      if (command.find(" --") != command.find(' ', command.find(' ') + 1)) commands.insert(command);  // has a MODEL
    }
  }
  for (const std::string& name : minutes) CHECK(commands.erase(name) == 1);
  for (const std::string& command : commands) {
    INFO(command);
    if (command.starts_with(reproduce)) {  // takes minutes: only check that the experiment exists
      CHECK((experiments + ",").find(" " + command.substr(reproduce.size()) + ",") != std::string::npos);
      continue;
    }
    const book::Result result = book::run(command);
    INFO(result.output);
    CHECK(result.status == 0);
  }
  CHECK(commands.size() >= 10);
}

TEST_CASE("book: write what commands print", "[.write]") {
  std::vector<book::Chapter> pages = documents();
  for (const char* const path : {"README.md", "docs/book/README.md"}) {
    pages.push_back({.path = path, .text = files_test::read_text_file(path)});
  }
  for (const book::Chapter& chapter : book::chapters()) pages.push_back(chapter);
  for (const book::Chapter& page : pages) {
    std::vector<std::string> lines = book::lines_of(page.text);
    const std::vector<book::Shown> all = book::shown_commands(page.text);
    bool is_new = false;
    for (auto shown = all.rbegin(); shown != all.rend(); ++shown) {
      const std::vector<std::string> now =
          book::renewed(shown->lines, book::lines_of(book::run(shown->command).output));
      if (now == shown->lines) continue;
      is_new = true;
      std::printf("%s: %s\n", page.path.c_str(), shown->command.c_str());
      const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(shown->first_line);
      lines.insert(lines.erase(begin, begin + static_cast<std::ptrdiff_t>(shown->lines.size())), now.begin(),
                   now.end());
    }
    if (is_new) files_test::write_text_file(page.path, book::joined(lines));
  }
}
