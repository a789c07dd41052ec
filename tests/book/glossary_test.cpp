// The glossary: the book's terms, each explained at its first use, and the terms that headers explain.
// `thimble_book_tests '[.write]'` rewrites the second part.

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>

#include "chapters.h"
#include "house/sources.h"
#include "support/catch.h"
#include "support/files.h"

namespace {

constexpr const char* path = "docs/book/glossary.md";
const std::string begin_of_terms = "## Terms of the headers\n";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Headings and the question announce terms that are explained below them.
std::string without_headings(const std::string& text) {
  std::string rest;
  for (const std::string& line : book::lines_of(text)) {
    if (!line.starts_with("#") && !line.starts_with(">")) rest += line + "\n";
  }
  return rest;
}

struct Word {
  std::string word;
  int chapter;
};

/// Rows `| word | chapter | meaning |` of the first part.
std::vector<Word> words_of(const std::string& glossary) {
  static const std::regex row(R"(\| \*\*([^*]+)\*\* \| \[(\d+)\]\([^)]*\) \| .+ \|)");
  std::vector<Word> words;
  for (const std::string& line : book::lines_of(glossary)) {
    std::smatch match;
    if (std::regex_match(line, match, row)) words.push_back({match[1], std::stoi(match[2])});
  }
  return words;
}

/// Where a word or its plural first occurs in a lower-case text, as a whole word; npos if it does not.
std::size_t first_use(const std::string& text, const std::string& word) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    std::size_t end = at + word.size();
    if (end < text.size() && text[end] == 's') ++end;
    if ((at == 0 || !is_letter(text[at - 1])) && (end == text.size() || !is_letter(text[end]))) return at;
  }
  return std::string::npos;
}

/// Empty if the word's first use in the chapters' prose is its explanation, in bold, in the chapter that the glossary
/// names.
std::string problem_of(const Word& word, const std::vector<book::Chapter>& chapters) {
  // A name with capitals inside (ZeRO) differs from the same letters in lower case (zero).
  const bool is_name =
      std::any_of(word.word.begin() + 1, word.word.end(), [](unsigned char c) { return std::isupper(c); });
  const std::string name = is_name ? word.word : lower(word.word);
  for (const book::Chapter& chapter : chapters) {
    std::string text = chapter.text;
    if (!is_name) text = lower(text);
    for (char& c : text) {
      if (c == '\n') c = ' ';  // two words may be on two lines
    }
    const std::size_t at = first_use(text, name);
    if (at == std::string::npos) continue;
    const bool is_bold = at >= 2 && text.compare(at - 2, 2, "**") == 0;
    const std::string where = word.word + ": first used in " + chapter.path;
    if (chapter.number != word.chapter) return where + ", explained in chapter " + std::to_string(word.chapter);
    return is_bold ? "" : where + " before it is explained: " + text.substr(at > 50 ? at - 50 : 0, 100);
  }
  return word.word + ": in no chapter";
}

/// The entries of a header after "// Terms" or "// Glossary": "term   meaning", continued on indented lines.
std::map<std::string, std::string> terms_of(const std::string& text) {
  static const std::regex head(R"(//+ (Terms|Glossary)( .*)?)"), dashed(R"(//+ - (\S+(?: \S+)*?)  +(\S.*))");
  static const std::regex term(R"(//+   (\S+(?: \S+)*?)  +(\S.*))"), more(R"(//+      *(\S.*))");
  std::map<std::string, std::string> terms;
  bool is_inside = false;
  std::string last;
  for (const std::string& line : book::lines_of(text)) {
    if (!line.starts_with("//")) {
      is_inside = false;
      continue;
    }
    const bool may_begin = line.find("Terms") != std::string::npos || line.find("Glossary") != std::string::npos;
    if (!is_inside && !may_begin) continue;
    std::smatch match;
    if (may_begin && std::regex_match(line, head)) {
      is_inside = true;
    } else if (is_inside && (std::regex_match(line, match, term) || std::regex_match(line, match, dashed))) {
      last = match[1];
      terms[last] = match[2];
    } else if (is_inside && !last.empty() && std::regex_match(line, match, more)) {
      terms[last] += " " + match[1].str();
    } else if (is_inside) {
      is_inside = false;
      last.clear();
    }
  }
  return terms;
}

std::string table_of_terms() {
  struct Entry {
    std::string term, meaning, file;
  };
  std::vector<Entry> entries;
  for (const house::Source& file : house::all_files()) {
    if (!house::is_header(file.path) || file.path.starts_with("tests/")) continue;
    for (const auto& [term, meaning] : terms_of(file.text)) entries.push_back({term, meaning, file.path});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return lower(a.term) < lower(b.term); });
  std::string text = begin_of_terms +
                     "\nCollected from the headers, which are where these words are used. The same word may mean one "
                     "thing to the arena\nand another to the tape.\n\n| term | meaning | header |\n|---|---|---|\n";
  for (Entry& entry : entries) {
    for (std::string* const cell : {&entry.term, &entry.meaning}) {
      *cell = std::regex_replace(*cell, std::regex("[|<>*_`]"), "\\$&");
    }
    text += "| " + entry.term + " | " + entry.meaning + " | [" + entry.file + "](../../" + entry.file + ") |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("book: no word is used before it is explained", "[book]") {
  std::vector<book::Chapter> chapters = book::chapters();
  for (book::Chapter& chapter : chapters) chapter.text = book::prose_of(without_headings(chapter.text), true);
  const std::vector<Word> words = words_of(files_test::read_text_file(path));
  CHECK(words.size() >= 60);
  std::vector<std::string> problems;
  for (const Word& word : words) {
    if (std::string problem = problem_of(word, chapters); !problem.empty()) problems.push_back(problem);
  }
  INFO(house::lines(problems));
  CHECK(problems.empty());
}

TEST_CASE("book: the glossary has the headers' terms", "[book]") {
  const std::string glossary = files_test::read_text_file(path);
  INFO("write them anew: thimble_book_tests '[.write]'");
  CHECK(glossary.substr(glossary.find(begin_of_terms)) == table_of_terms());
}

TEST_CASE("book: the check of first uses finds what it is for", "[book]") {
  const std::vector<book::Chapter> chapters = {{"one", "the tapes run, a **segment** is\n", 1},
                                               {"two", "a **tape**\n", 2}};
  CHECK(problem_of({"tape", 2}, chapters).find("first used in one") != std::string::npos);
  CHECK(problem_of({"segment", 1}, chapters).empty());
  CHECK(problem_of({"segment", 2}, chapters).find("explained in chapter 2") != std::string::npos);
  CHECK(problem_of({"run", 1}, chapters).find("before it is explained") != std::string::npos);
  CHECK(problem_of({"hull", 1}, chapters).find("in no chapter") != std::string::npos);
  CHECK(terms_of("// Terms\n//   a b   means\n//         this\n//\n//   c   d\n") ==
        std::map<std::string, std::string>{{"a b", "means this"}});
}

TEST_CASE("book: write the headers' terms", "[.write]") {
  std::string glossary = files_test::read_text_file(path);
  glossary.resize(std::min(glossary.size(), glossary.find(begin_of_terms)));
  files_test::write_text_file(path, glossary + table_of_terms());
}
