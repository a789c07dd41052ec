#pragma once
// Checks of the commands on every page.

#include <algorithm>
#include <array>

#include "chapters.h"
#include "support/catch.h"

namespace book {

/// Why no test can run a block's commands or smaller ones; `<!-- not run: WHY -->` begins with one of these.
inline constexpr std::array reasons = {"a GPU",
                                       "MPI",
                                       "PyTorch",
                                       "a benchmark",
                                       "a download",
                                       "a terminal",
                                       "a form",
                                       "a test runs within it",
                                       "minutes of a compiler"};

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

/// Every `<!-- run: COMMAND -->` prints the block below it. Returns their number.
inline std::size_t check_shown(const Chapter& page) {
  const std::vector<Shown> all = shown_commands(page.text);
  for (const Shown& shown : all) {
    const Result result = run(shown.command);
    INFO(page.path << ": " << shown.command << "\nshown:\n"
                   << joined(shown.lines) << "printed:\n"
                   << result.output << "renew the page: tools/figures.sh");
    CHECK(shown.is_prompted);
    CHECK(result.status == 0);
    CHECK(matches(shown.lines, lines_of(result.output)));
  }
  return all.size();
}

/// Every other block of commands has one mark, and runs accordingly. Returns their number.
inline std::size_t check_blocks(const Chapter& page) {
  const std::vector<Script> all = scripts(page.text);
  for (const Script& script : all) {
    INFO(page.path << ", line " << script.line);
    CHECK_FALSE(script.is_unmarked_output);
    CHECK((script.is_run_each ? 1 : 0) + (script.instead.empty() ? 0 : 1) + (script.why_not.empty() ? 0 : 1) == 1);
    if (!script.why_not.empty()) {
      CHECK(std::ranges::any_of(reasons, [&](const char* reason) { return script.why_not.starts_with(reason); }));
      continue;
    }
    if (!script.instead.empty()) CHECK(script.instead.size() == script.commands.size());
    const Place place;
    for (const std::string& command : script.instead.empty() ? script.commands : script.instead) {
      const Result result = place.run(command);
      INFO(command << "\n" << result.output);
      CHECK(result.status == 0);
    }
  }
  return all.size();
}

}  // namespace book
