#pragma once
// The chapters of the book as text, and what stands in them.

#include <string>
#include <vector>

#include "support/files.h"

namespace book {

inline constexpr const char* folder = "docs/book/";

struct Chapter {
  std::string path, text;
  int number = 0;
};

/// docs/book/NN-*.md by number. Throws std::runtime_error outside of the project's root.
std::vector<Chapter> chapters();

std::vector<std::string> lines_of(const std::string& text);

/// A block between fences behind a line `<!-- run: COMMAND -->`: "$ COMMAND", which readers see, and what it says.
struct Shown {
  std::string command;
  bool is_prompted = false;        ///< the block begins with the command
  std::size_t first_line = 0;      ///< index of the output's first line
  std::vector<std::string> lines;  ///< of the output
};
std::vector<Shown> shown_commands(const std::string& text);

/// Whether the output is what is shown: in a line, "…" stands for any characters; a line "..." for any lines.
bool matches(const std::vector<std::string>& shown, const std::vector<std::string>& output);

/// What to show of a new output in place of `shown`: its lines with the output's numbers, what is left out left out;
/// all of the output where it has other lines.
std::vector<std::string> renewed(const std::vector<std::string>& shown, const std::vector<std::string>& output);

/// The prose of a chapter: without blocks of code, formulas, comments, pictures and the marks of Markdown. `keeps_bold`
/// leaves "**".
std::string prose_of(const std::string& text, bool keeps_bold = false);

std::size_t word_count(const std::string& prose);

/// A block of commands, ```sh, or of lines "$ COMMAND" with what they print, but no shown one; and the lines right
/// above it, which say how a test runs it:
///   <!-- run each -->          every line as it stands, one after the other in one folder
///   <!-- instead: COMMAND -->  one for each command of the block: a smaller one, of a long one or another machine's
///   <!-- not run: WHY -->      nothing; tests/book/page_check.h lists the reasons
struct Script {
  std::size_t line = 0;  ///< of the block's first command, from 1
  std::vector<std::string> commands, instead;
  bool is_run_each = false;
  bool is_unmarked_output = false;  ///< a block without a language that has a line "thimble ..."
  std::string why_not;
};
std::vector<Script> scripts(const std::string& text);

/// `thimble COMMAND ...` in backticks within prose, where it is whole: it names what it works on, and has no "..." and
/// no word of capitals that stands for something (FILE, MODEL).
std::vector<std::string> commands_in_prose(const std::string& text);

/// Runs a command line as the book has it, in a folder of its own with docs/ in it, on two threads and the generic
/// instruction set. `thimble` is the program under test; `examples/NAME` lies beside it.
struct Result {
  int status = -1;
  std::string output;  ///< both streams
};
Result run(const std::string& command);

/// The folder of several commands, which goes with it. Commands find there, besides what run() says, text.txt and
/// mnist/, the data that pages speak of: 20 KB of this project's own prose, and some hundred pictures drawn here.
class Place {
 public:
  Place();
  Result run(const std::string& command) const;

 private:
  files_test::TemporaryFolder folder_;
};

}  // namespace book
