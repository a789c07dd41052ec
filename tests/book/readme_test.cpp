// README: its tables have the program's figures, its sample is a complete program of examples/, and the program has the
// capabilities that it lists.

#include <algorithm>
#include <iterator>
#include <regex>
#include <set>

#include "chapters.h"
#include "house/sources.h"
#include "support/catch.h"
#include "support/files.h"

namespace {

constexpr const char* path = "README.md";

std::set<std::string> found(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> all;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) all.insert((*match)[1]);
  return all;
}

std::set<std::string> less(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> rest;
  std::ranges::set_difference(a, b, std::inserter(rest, rest.end()));
  return rest;
}

/// The text between two marks.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t at = text.find(begin), from = at + begin.size();
  return at == std::string::npos ? "" : text.substr(from, text.find(end, from - 1) - from);
}

/// Flags of the index of commands (docs/book/commands.md, which another test compares with the program).
std::set<std::string> flags_of(const std::string& index, const std::string& command) {
  return found(between(index, "\n## thimble " + command + "\n", "\n## "), "^\\| `(--[a-z0-9-]+)");
}

/// Flags of `plan` and `train` that README need not name: sizes, seeds and schedules, files and output format, times of
/// the cost model, and numbers that tune a technique which README names.
const std::set<std::string> ordinary = found(
    "--beta2 --between --bucket --chunks --clip --csv --dp --dropout --eval-every --fp8-history --fp8-hybrid "
    "--fp8-margin --full-state --hardware --inside --isa --keep --kv-heads --lora-alpha --lora-dropout "
    "--lora-targets --loss-scale-interval --lr --min-lr --mlp --optimizer-rank --overwrite --per-node --profile "
    "--profile-file --prompt-tokens --read-ahead --save-adapters --save-every --schedule --seed --shared-kernels "
    "--show-memory --snapshot --strict --tf32 --threads --trace --warmup --weight-decay --cpu-dot",
    "(\\S+)");

struct Problems {
  std::set<std::string> gone;     ///< named by README, missing in the program
  std::set<std::string> unnamed;  ///< capabilities of the program that README does not name
  std::set<std::string> stale;    ///< listed as ordinary, but no flags
};

Problems problems_of(const std::string& readme, const std::string& index) {
  std::set<std::string> capabilities = flags_of(index, "plan");
  capabilities.merge(flags_of(index, "train"));
  const std::set<std::string> named = found(readme, "(?:^|[^-a-z])(--[a-z][a-z0-9-]*)");
  const std::set<std::string> all = found(index, "(--[a-z][a-z0-9-]*)"), of_cmake = {"--build", "--target"};
  return {.gone = less(less(named, all), of_cmake),
          .unnamed = less(less(capabilities, ordinary), named),
          .stale = less(ordinary, capabilities)};
}

std::string first_words(const std::string& table) {
  std::string words;
  for (const std::string& name : found(table, "^(\\S+)")) words += name + "\n";
  return words;
}

}  // namespace

TEST_CASE("readme: capabilities are the program's flags", "[book]") {
  const Problems problems =
      problems_of(files_test::read_text_file(path), files_test::read_text_file("docs/book/commands.md"));
  CHECK(problems.gone == std::set<std::string>{});
  CHECK(problems.unnamed == std::set<std::string>{});
  CHECK(problems.stale == std::set<std::string>{});
}

TEST_CASE("readme: models are the program's", "[book]") {
  std::string named;
  const std::string list = between(files_test::read_text_file(path), "<!-- models -->\n", "\n\n");
  for (const std::string& name : found(list, "`([^`]+)`")) named += name + "\n";
  CHECK(named == first_words(book::run("thimble models").output));
}

TEST_CASE("readme: the check of capabilities finds what it is for", "[book]") {
  const std::string index =
      "\n## thimble plan\n\n| `--budget` | B |\n| `--tp` | T |\n\n## thimble pack\n\n| `--out` | O |\n";
  CHECK(problems_of("`--budget 5GiB` and `--tp`, --out, cmake --build", index).gone.empty());
  CHECK(problems_of("`--budget`, `--tensor`", index).gone == std::set<std::string>{"--tensor"});
  CHECK(problems_of("`--budget`", index).unnamed == std::set<std::string>{"--tp"});
  CHECK(problems_of("`--budget-x --tp`", index).unnamed == std::set<std::string>{"--budget"});
  CHECK(problems_of("", index).stale == ordinary);
}

TEST_CASE("readme: its sample is a whole program", "[book]") {
  const std::string sample =
      between(files_test::read_text_file(path), "<!-- code of examples/budget.cpp -->\n```cpp\n", "```\n");
  const std::string program = files_test::read_text_file("examples/budget.cpp");
  CHECK(sample == program.substr(std::min(program.size(), program.find("#include"))));
}

namespace {

/// Rows of README's table of kept bytes, and the beginnings of their lines in the experiments' tables.
const std::vector<std::pair<std::string, std::string>> kept_rows = {
    {"ResNet-50 at 224, one image, textbook build", "resnet50,224,1,"},
    {"ResNet-18 at 32, 16 images, textbook build", "resnet18,32,16,"},
    {"one GPT layer, s 512, b 2, h 128, a 4, textbook", "textbook,512,2,128,4,"},
    {"the same with tiled attention", "tiled attention,512,2,128,4,"}};

std::string grouped(std::string digits) {
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

/// README with the figures of its two tables that the program prints.
std::string with_figures(std::string readme) {
  const std::string kept =
      "\n" +
      book::run("thimble reproduce resnet-batch gpt-layer --quick --out report >/dev/null 2>&1; cat report/*.csv")
          .output;
  for (const auto& [name, key] : kept_rows) {
    const std::regex row("(\\| " + name + " \\|).*"), figures("\n" + key + "(\\d+),(\\d+),(\\d+),");
    std::smatch match;
    REQUIRE(std::regex_search(readme, row));
    REQUIRE(std::regex_search(kept, match, figures));
    CHECK(match[2] == match[3]);  // predicted and measured
    readme = std::regex_replace(readme, row, "$1 " + grouped(match[1]) + " | " + grouped(match[2]) + " |");
  }
  static const std::regex budget(R"(\| ([\d.]+) (G[i]?B) \| [\d.]+ GiB \| [\d.]+ % \|)");
  static const std::regex peak(R"(  peak \(committed\) +[\d,]+ +([\d.]+ GiB)\n)"),
      time(R"(\ntime: ([\d.]+ %) over keeping)");
  std::string rest = readme, text;
  std::size_t budgets = 0;
  for (std::smatch match; std::regex_search(rest, match, budget); ++budgets) {
    const std::string plan =
        book::run("thimble plan resnet50 --batch 184 --budget " + match[1].str() + match[2].str()).output;
    std::smatch bytes, percent;
    REQUIRE(std::regex_search(plan, bytes, peak));
    REQUIRE(std::regex_search(plan, percent, time));
    text += match.prefix().str() + "| " + match[1].str() + " " + match[2].str() + " | " + bytes[1].str() + " | " +
            percent[1].str() + " |";
    rest = std::string(match.suffix());
  }
  CHECK(budgets == 4);
  return text + rest;
}

}  // namespace

TEST_CASE("readme: tables have the program's figures", "[book]") {
  const std::string readme = files_test::read_text_file(path);
  INFO("renew them: tools/figures.sh");
  CHECK(with_figures(readme) == readme);
}

TEST_CASE("readme: measured times of plans are those of docs/fit.md", "[book]") {
  const std::string readme = files_test::read_text_file(path), fit = files_test::read_text_file("docs/fit.md");
  static const std::regex row(R"(\| ([\d.]+ GiB) \| [\d.]+ GiB \| [\d.]+ % \| ([-+][\d.]+ %) \|)");
  std::size_t rows = 0;
  for (std::sregex_iterator match(readme.begin(), readme.end(), row), end; match != end; ++match, ++rows) {
    const std::string budget = std::regex_replace((*match)[1].str(), std::regex("[.]"), "[.]");
    const std::regex measured("in " + budget + " \\|[^|]*\\| 14[.]25 GiB \\| [-+][\\d.]+ % \\| \\" + (*match)[2].str() +
                              " \\|");
    INFO((*match)[0]);
    CHECK(std::regex_search(fit, measured));
  }
  CHECK(rows == 3);
}

TEST_CASE("readme: write its tables", "[.write]") {
  files_test::write_text_file(path, with_figures(files_test::read_text_file(path)));
}
