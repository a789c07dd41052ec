#pragma once
// The chapters of the book as text, and their contents.

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

/// A block between fences after a line `<!-- run: COMMAND -->`: "$ COMMAND", which readers see, and its output.
struct Shown {
  std::string command;
  bool is_prompted = false;        ///< the block begins with the command
  std::size_t first_line = 0;      ///< index of the output's first line
  std::vector<std::string> lines;  ///< of the output
};
std::vector<Shown> shown_commands(const std::string& text);

/// Whether the output matches: in a shown line "…" matches any characters; a line "..." matches any lines.
bool matches(const std::vector<std::string>& shown, const std::vector<std::string>& output);

/// The text that replaces `shown` for a new output: its lines with the output's numbers and the same omissions; the
/// whole output where its lines differ.
std::vector<std::string> renewed(const std::vector<std::string>& shown, const std::vector<std::string>& output);

/// The prose of a chapter, without code blocks, formulas, comments, pictures and Markdown's marks. `keeps_bold` leaves
/// "**".
std::string prose_of(const std::string& text, bool keeps_bold = false);

std::size_t word_count(const std::string& prose);

/// A block of commands, ```sh, or of lines "$ COMMAND" with their output, that is not a shown one; and the lines right
/// above it, which tell a test how to run it:
///   <!-- run each -->          every line as it stands, one after the other in one folder
///   <!-- instead: COMMAND -->  one per command of the block: a smaller one, where that is long or for another machine
///   <!-- not run: WHY -->      nothing; tests/book/page_check.h lists the reasons
struct Script {
  std::size_t line = 0;  ///< of the block's first command, from 1
  std::vector<std::string> commands, instead;
  bool is_run_each = false;
  bool is_unmarked_output = false;  ///< a block without a language that has a line "thimble ..."
  std::string why_not;
};
std::vector<Script> scripts(const std::string& text);

/// `thimble COMMAND ...` in backticks within prose, where it is complete: it names its model or file, and has no "..."
/// and no placeholder in capitals (FILE, MODEL).
std::vector<std::string> commands_in_prose(const std::string& text);

/// Runs a command line of the book in a temporary folder with docs/ in it, on two threads and the generic
/// instruction set. `thimble` is the program under test; its folder also has `examples/NAME`.
struct Result {
  int status = -1;
  std::string output;  ///< both streams
};
Result run(const std::string& command);

/// The folder of several commands, deleted at the end. Besides docs/ it has text.txt and mnist/, the data that pages
/// name: 20 KB of this project's prose, and some hundred generated pictures.
class Place {
 public:
  Place();
  Result run(const std::string& command) const;

 private:
  files_test::TemporaryFolder folder_;
};

}  // namespace book
