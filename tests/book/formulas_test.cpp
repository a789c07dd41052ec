// Formulas of the documents come out right on GitHub, which reads a page as Markdown before it looks for formulas:
// Markdown's marks inside a formula break it.

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

#include "chapters.h"
#include "house/sources.h"
#include "support/catch.h"

namespace {

/// Commands that GitHub renders correctly. Look at a new one on a page before adding it here.
const std::set<std::string>& known_commands() {
  static const std::set<std::string> known = {
      "Big",    "approx",     "beta",      "binom", "cdot",    "delta",     "dots", "ell",  "epsilon",
      "frac",   "gamma",      "ge",        "int",   "lambda",  "lceil",     "le",   "left", "log",
      "mathrm", "max",        "min",       "mu",    "partial", "phi",       "pi",   "pm",   "qquad",
      "quad",   "rceil",      "right",     "sigma", "sin",     "sqrt",      "sum",  "tanh", "text",
      "tfrac",  "thickspace", "thinspace", "times", "to",      "underbrace"};
  return known;
}

bool is_one_of(char c, const char* list) { return std::string(list).find(c) != std::string::npos; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// The problem with the inside of a formula; empty if there is no problem.
std::string problem_of_formula(const std::string& formula, bool is_in_table) {
  int depth = 0;
  for (std::size_t i = 0; i < formula.size(); ++i) {
    const char c = formula[i], next = i + 1 < formula.size() ? formula[i + 1] : ' ';
    const char last = i > 0 ? formula[i - 1] : ' ';
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth < 0) return "a } too many";
    if (c == '\\' && !std::isalpha(static_cast<unsigned char>(next))) {
      return std::string("Markdown takes the backslash of \\") + next;
    }
    if (c == '*' || c == '`') return std::string("Markdown reads ") + c;
    // A _ may open an emphasis here: after a letter or a digit it can only close one.
    if (c == '_' && !is_word(last) && next != ' ') return "Markdown may take _ for an emphasis: write '_ ' behind }";
    if (c == '<' && (std::isalpha(static_cast<unsigned char>(next)) || is_one_of(next, "/!?"))) {
      return "< before a letter begins a tag: leave a space";
    }
    if (c == '|' && is_in_table) return "| ends the cell of a table";
    if (c == ']' && next == '(') return "](  begins a link";
  }
  if (depth != 0) return "a { too many";
  static const std::regex command(R"(\\([A-Za-z]+))");
  std::size_t left = 0, right = 0;
  for (std::sregex_iterator m(formula.begin(), formula.end(), command), end; m != end; ++m) {
    const std::string name = (*m)[1];
    if (!known_commands().contains(name)) return "\\" + name + " is not among those that were looked at";
    left += name == "left" ? 1 : 0;
    right += name == "right" ? 1 : 0;
  }
  return left == right ? "" : "\\left without \\right";
}

struct Found {
  std::size_t formulas = 0;
  std::vector<std::string> problems;  ///< "line 3: ..."
};

/// A page's formulas: $...$ within a line, and $$...$$ as a one-line paragraph.
Found formulas_of(const std::string& page) {
  Found found;
  const std::vector<std::string> lines = book::lines_of(page);
  bool is_code = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("```") < lines[i].find_first_not_of(" \t`")) is_code = !is_code;
    if (is_code || lines[i].starts_with("```") || lines[i].starts_with("<!--")) continue;
    const auto problem = [&](const std::string& what) {
      if (!what.empty()) found.problems.push_back("line " + std::to_string(i + 1) + ": " + what + ": " + lines[i]);
    };
    const std::string line = std::regex_replace(lines[i], std::regex("`[^`]*`"), "x");
    if (line.find("$$") != std::string::npos) {
      const bool is_whole = line.size() > 4 && line.starts_with("$$") && line.find("$$", 2) == line.size() - 2;
      const bool is_alone = (i == 0 || lines[i - 1].empty()) && (i + 1 == lines.size() || lines[i + 1].empty());
      if (!is_whole || !is_alone) {
        problem("a formula between $$ is a paragraph of one line");
        continue;
      }
      ++found.formulas;
      problem(problem_of_formula(line.substr(2, line.size() - 4), false));
      continue;
    }
    std::vector<std::size_t> signs;
    for (std::size_t at = line.find('$'); at != std::string::npos; at = line.find('$', at + 1)) signs.push_back(at);
    if (signs.size() % 2 != 0) {
      problem("a $ without another; an amount is written with its currency's name");
      continue;
    }
    for (std::size_t k = 0; k < signs.size(); k += 2) {
      const std::size_t begin = signs[k], end = signs[k + 1];
      const char before = begin > 0 ? line[begin - 1] : ' ', after = end + 1 < line.size() ? line[end + 1] : ' ';
      const std::string inside = line.substr(begin + 1, end - begin - 1);
      ++found.formulas;
      if (inside.empty() || inside.front() == ' ' || inside.back() == ' ') problem("a space inside of $");
      if (!is_one_of(before, " ([|*\"-")) problem("before a formula is a space");
      if (is_word(after)) problem("a letter or a number right behind a formula");
      problem(problem_of_formula(inside, line.starts_with("|")));
    }
  }
  return found;
}

std::string problems_of(const std::string& page) { return house::lines(formulas_of(page).problems); }

}  // namespace

TEST_CASE("book: formulas are what GitHub shows", "[book]") {
  std::size_t formulas = 0;
  for (const house::Source& file : house::all_files()) {
    if (!file.path.ends_with(".md")) continue;
    const Found found = formulas_of(file.text);
    formulas += found.formulas;
    INFO(file.path << "\n" << house::lines(found.problems));
    CHECK(found.problems.empty());
  }
  CHECK(formulas >= 400);
}

TEST_CASE("book: the check of formulas finds what it is for", "[book]") {
  CHECK(problems_of("Let $n$ be, ($x_1$) and $a_{i}$.\n\n$$\\frac{a}{b} < c$$\n\n`$ a` costs\n").empty());
  CHECK(problems_of("it costs $5 a day\n").find("without another") != std::string::npos);
  CHECK(problems_of("between $ 5 and $6\n").find("space inside") != std::string::npos);
  CHECK(problems_of("the $n$th\n").find("right behind") != std::string::npos);
  CHECK(problems_of("the n$m$ of\n").find("before a formula") != std::string::npos);
  CHECK(problems_of("where\n$$a$$\n").find("paragraph") != std::string::npos);
  CHECK(problems_of("$$a$$ and more\n").find("paragraph") != std::string::npos);
  CHECK(problems_of("$a\\,b$\n").find("backslash") != std::string::npos);
  CHECK(problems_of("$\\{a\\}$\n").find("backslash") != std::string::npos);
  CHECK(problems_of("$a * b$\n").find("reads *") != std::string::npos);
  CHECK(problems_of("$\\underbrace{a}_{b}$\n").find("emphasis") != std::string::npos);
  CHECK(problems_of("$\\underbrace{a}_ {b}$\n").empty());
  CHECK(problems_of("$a <b$\n").find("tag") != std::string::npos);
  CHECK(problems_of("| $|a|$ |\n").find("cell") != std::string::npos);
  CHECK(problems_of("$\\operatorname{a}$\n").find("not among") != std::string::npos);
  CHECK(problems_of("$\\frac{a}{b$\n").find("{ too many") != std::string::npos);
  CHECK(problems_of("$\\left( a$\n").find("without \\right") != std::string::npos);
  CHECK(problems_of("```\n$ a\n```\n").empty());
}
