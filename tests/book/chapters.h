#pragma once
// The chapters of the book as text, and what stands in them.

#include <string>
#include <vector>

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

/// The prose of a chapter: without blocks of code, formulas, comments, pictures and the marks of Markdown. `keeps_bold`
/// leaves "**".
std::string prose_of(const std::string& text, bool keeps_bold = false);

std::size_t word_count(const std::string& prose);

/// Runs a command line as the book has it, in a folder of its own with docs/ in it, on two threads and the generic
/// instruction set. `thimble` is the program under test; `examples/NAME` lies beside it.
struct Result {
  int status = -1;
  std::string output;  ///< both streams
};
Result run(const std::string& command);

}  // namespace book
