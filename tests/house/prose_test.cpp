// Comments and errors read like the book: phrases that the style replaces are counted in each folder.

#include <cctype>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sources.h"
#include "support/catch.h"

namespace {

/// Words in a row, in lower case. A colon belongs to its word; a semicolon and the mark of a trailing comment are the
/// word ";"; other punctuation is dropped.
using Phrase = std::vector<std::string>;

Phrase words_of(const std::string& text) {
  Phrase words;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    std::string kept;
    for (const char c : word) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("_:'").find(c) != std::string_view::npos)
        kept += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (word == "///<") words.push_back(";");
    if (!kept.empty()) words.push_back(std::move(kept));
    if (word.back() == ';') words.push_back(";");
  }
  return words;
}

/// Ways to write one thing that the style replaces, and how often a folder's comments may, per 1,000 words.
struct Habit {
  std::vector<Phrase> phrases;
  double per_thousand;
};

const std::vector<Habit>& habits() {
  static const std::vector<Habit> all = {
      {{{"what"}}, 1.0},
      {{{"those"}}, 0.3},
      {{{"that", "of"}, {"those", "of"}}, 0.1},
      {{{"of", "its", "own"}, {"of", "their", "own"}}, 0.05},
      {{{";", "none:"}, {";", "null:"}, {";", "empty:"}, {";", "undefined:"}, {";", "0:"}}, 0.3},
      {{{"alone"}}, 0},
      {{{"somebody"}, {"nobody"}, {"whoever"}}, 0},
      {{{"who"}}, 0.1},
  };
  return all;
}

const std::vector<Phrase> refusals = {{"is", "allowed"}, {"are", "allowed"}, {";", "allowed"}, {";", "allowed:"}};

std::size_t count(const std::vector<Phrase>& phrases, const Phrase& words) {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (const Phrase& phrase : phrases) {
      std::size_t k = 0;
      while (k < phrase.size() && i + k < words.size() && words[i + k] == phrase[k]) ++k;
      if (k == phrase.size()) ++found;
    }
  }
  return found;
}

struct Prose {
  std::string comments, strings;
};

/// The comments and the string literals of code.
Prose prose_of(const std::string& code) {
  Prose prose;
  const auto end_of = [&](const std::string& mark, std::size_t from) {
    const std::size_t found = code.find(mark, from);
    return found == std::string::npos ? code.size() : found;
  };
  for (std::size_t i = 0; i < code.size();) {
    std::size_t end = i + 1;
    const bool follows_name = i > 0 && std::isalnum(static_cast<unsigned char>(code[i - 1])) != 0;
    if (code.compare(i, 2, "//") == 0) {
      end = end_of("\n", i);
      prose.comments += code.substr(i, end - i) + ' ';
    } else if (code.compare(i, 2, "/*") == 0) {
      end = end_of("*/", i);
      prose.comments += code.substr(i, end - i) + ' ';
    } else if (code.compare(i, 2, "R\"") == 0 && !follows_name) {
      const std::size_t open = end_of("(", i);
      end = end_of(")" + code.substr(i + 2, open - i - 2) + "\"", open);
      prose.strings += code.substr(i, end - i) + ' ';
      ++end;
      end = end_of("\"", end) + 1;
    } else if (code[i] == '"' || (code[i] == '\'' && !follows_name)) {  // an apostrophe in a number follows a digit
      while (end < code.size() && code[end] != code[i]) end += code[end] == '\\' ? 2 : 1;
      if (code[i] == '"') prose.strings += code.substr(i + 1, end - i - 1) + ' ';
      ++end;
    }
    i = end;
  }
  return prose;
}

/// Finds the habits of a folder's comments above their limits, and its strings that refuse in the wrong form.
std::vector<std::string> problems_of(const std::string& folder, const Phrase& comments, const Phrase& strings) {
  std::vector<std::string> problems;
  for (const Habit& habit : habits()) {
    const std::size_t times = count(habit.phrases, comments);
    if (static_cast<double>(times) * 1000 > habit.per_thousand * static_cast<double>(comments.size()))
      problems.push_back(folder + ": \"" + habit.phrases[0].back() + "\" and the like " + std::to_string(times) +
                         " times in " + std::to_string(comments.size()) + " words of comments");
  }
  if (const std::size_t refused = count(refusals, strings); refused > 0)
    problems.push_back(folder + ": " + std::to_string(refused) +
                       " errors say what \"is allowed\", not what is expected");
  return problems;
}

}  // namespace

TEST_CASE("prose: comments and errors are plain", "[house]") {
  std::map<std::string, Prose> folders;
  for (const house::Source& file : house::all_files()) {
    if (!house::is_code(file.path) || file.path == "tests/house/prose_test.cpp") continue;  // it lists the phrases
    const Prose prose = prose_of(file.text);
    Prose& sum = folders[house::layer_of(file.path)];
    sum.comments += prose.comments;
    sum.strings += prose.strings;
  }
  std::vector<std::string> problems;
  for (const auto& [folder, prose] : folders) {
    for (std::string& problem : problems_of(folder, words_of(prose.comments), words_of(prose.strings)))
      problems.push_back(std::move(problem));
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
  CHECK(folders.size() > 10);
}

TEST_CASE("prose: the check finds what it is for", "[house]") {
  const Prose prose = prose_of(
      "int n = 1'000;  // A word, \"quoted\"\n"
      "char c = '\"'; /* and\nmore */ f(\"one // no comment\", R\"x(two \")x\", \"three\\\"\");\n");
  CHECK(words_of(prose.comments) == Phrase{"a", "word", "quoted", "and", "more"});
  CHECK(words_of(prose.strings) == Phrase{"one", "no", "comment", "rxtwo", "three"});
  const std::vector<std::string> bad = {"What backward needs",
                                        "alone",
                                        "the leaves; none: all of them",
                                        "a file of its own",
                                        "those",
                                        "the bytes, that of the arena",
                                        "nobody",
                                        "who calls"};
  const std::string fine(300, 'x');
  for (const std::string& text : bad) {
    INFO(text);
    CHECK_FALSE(problems_of("folder", words_of(text + ' ' + fine), {}).empty());
  }
  CHECK(problems_of("folder", words_of("Defaults to all. " + fine), words_of("expected 1, got 2")).empty());
  for (const char* const text : {"only 1 is allowed", "token 9; allowed: below 9"}) {
    CHECK(problems_of("folder", {}, words_of(text)).size() == 1);
  }
}
