#include "chapters.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>

#include <sys/wait.h>

#include "house/sources.h"

namespace book {

namespace fs = std::filesystem;

std::vector<Chapter> chapters() {
  std::vector<Chapter> list;
  for (const house::Source& file : house::all_files()) {
    if (!file.path.starts_with(folder) || !file.path.ends_with(".md")) continue;
    const std::string name = file.path.substr(std::string(folder).size());
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    list.push_back({file.path, file.text, std::stoi(name)});
  }
  return list;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<Shown> shown_commands(const std::string& text) {
  const std::string mark = "<!-- run: ";
  const std::vector<std::string> lines = lines_of(text);
  std::vector<Shown> list;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with(mark)) continue;
    Shown shown;
    shown.command = lines[i].substr(mark.size(), lines[i].rfind(" -->") - mark.size());
    shown.is_prompted = i + 2 < lines.size() && lines[i + 2] == "$ " + shown.command;
    shown.first_line = i + (shown.is_prompted ? 3 : 2);
    for (std::size_t k = shown.first_line; k < lines.size() && lines[k] != "```"; ++k) shown.lines.push_back(lines[k]);
    list.push_back(shown);
  }
  return list;
}

namespace {

bool line_matches(const std::string& shown, const std::string& line) {
  const std::string any = "\u2026";
  std::size_t at = 0, from = 0;
  bool is_first = true;
  for (std::size_t end = shown.find(any); end != std::string::npos; end = shown.find(any, from)) {
    const std::string part = shown.substr(from, end - from);
    const std::size_t found = line.find(part, at);
    if (found == std::string::npos || (is_first && found != 0)) return false;
    at = found + part.size();
    from = end + any.size();
    is_first = false;
  }
  const std::string rest = shown.substr(from);
  if (is_first) return line == shown;
  return line.size() >= at + rest.size() && line.ends_with(rest);
}

}  // namespace

bool matches(const std::vector<std::string>& shown, const std::vector<std::string>& output) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (shown[i] == "...") {
      if (i + 1 == shown.size()) return true;
      while (at < output.size() && !line_matches(shown[i + 1], output[at])) ++at;
    } else if (at >= output.size() || !line_matches(shown[i], output[at++])) {
      return false;
    }
  }
  return at == output.size();
}

namespace {

/// `shown` as a pattern: any number and any run of spaces match, and "…" matches anything.
std::regex pattern_of(const std::string& shown) {
  static const std::regex number("^[0-9][0-9,.]*"), special("[.^$|()\\[\\]{}*+?\\\\]");
  const std::string any = "\u2026";
  std::string pattern;
  for (std::size_t at = 0; at < shown.size();) {
    const std::string rest = shown.substr(at);
    std::smatch match;
    if (std::regex_search(rest, match, number)) {
      pattern += "[0-9][0-9,.]*";
      at += static_cast<std::size_t>(match.length());
    } else if (rest.starts_with(any)) {
      pattern += ".*";
      at += any.size();
    } else if (rest[0] == ' ') {
      pattern += " +";
      at += std::min(rest.find_first_not_of(' '), rest.size());
    } else {
      pattern += std::regex_replace(rest.substr(0, 1), special, "\\$&");
      ++at;
    }
  }
  return std::regex(pattern);
}

/// A shown line with the numbers of `line`, which matches its pattern; "…" stays.
std::string with_numbers(const std::string& shown, const std::string& line) {
  const std::string any = "\u2026";
  std::string text;
  std::size_t from = 0, at = 0;
  for (std::size_t end = shown.find(any);; end = shown.find(any, from)) {
    const bool is_last = end == std::string::npos;
    const std::string piece = shown.substr(from, is_last ? end : end - from);
    std::smatch match;
    const std::string rest = line.substr(at);
    if (!piece.empty() && std::regex_search(rest, match, pattern_of(piece))) {
      text += match.str();
      at += static_cast<std::size_t>(match.position() + match.length());
    }
    if (is_last) return text;
    text += any;
    from = end + any.size();
  }
}

/// Among the lines from `at` on that match the pattern of `shown`, the one with the longest equal beginning: rows of a
/// table differ in their names. output.size() where none matches.
std::size_t most_alike(const std::string& shown, const std::vector<std::string>& output, std::size_t at) {
  const std::regex pattern = pattern_of(shown);
  std::size_t best = output.size(), best_alike = 0;
  for (; at < output.size(); ++at) {
    if (!std::regex_match(output[at], pattern)) continue;
    const auto end = std::ranges::mismatch(shown, output[at]).in1;
    const auto alike = static_cast<std::size_t>(end - shown.begin());
    if (best == output.size() || alike > best_alike) best = at, best_alike = alike;
  }
  return best;
}

}  // namespace

std::vector<std::string> renewed(const std::vector<std::string>& shown, const std::vector<std::string>& output) {
  if (matches(shown, output)) return shown;
  std::vector<std::string> lines;
  std::size_t at = 0;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (shown[i] == "...") {
      lines.push_back(shown[i]);
      if (i + 1 == shown.size()) return lines;
      at = most_alike(shown[i + 1], output, at);
    } else if (at >= output.size() || !std::regex_match(output[at], pattern_of(shown[i]))) {
      return output;
    } else {
      lines.push_back(with_numbers(shown[i], output[at++]));
    }
  }
  return at == output.size() ? lines : output;
}

std::string prose_of(const std::string& text, bool keeps_bold) {
  static const std::regex formula("\\$[^$]*\\$"), code("`[^`]*`"), target("\\]\\([^)]*\\)"), star("[*]"),
      mark("[#>|\\[\\]]");
  std::string prose;
  bool is_code = false, is_formula = false;
  for (std::string line : lines_of(text)) {
    if (line.starts_with("```")) is_code = !is_code;
    if (is_code || line.starts_with("```") || line.starts_with("<!--") || line.starts_with("![")) continue;
    if (line.starts_with("$$")) {
      if (line == "$$" || !line.ends_with("$$")) is_formula = !is_formula;
      continue;
    }
    if (is_formula) {
      if (line.ends_with("$$")) is_formula = false;
      continue;
    }
    line = std::regex_replace(line, formula, " x ");
    line = std::regex_replace(line, code, " x ");
    line = std::regex_replace(line, target, "] ");
    if (!keeps_bold) line = std::regex_replace(line, star, "");
    line = std::regex_replace(line, mark, " ");
    prose += line + "\n";
  }
  return prose;
}

std::size_t word_count(const std::string& prose) {
  std::istringstream in(prose);
  std::size_t count = 0;
  for (std::string word; in >> word;) {
    count += std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) != 0; }) ? 1 : 0;
  }
  return count;
}

namespace {

std::string big(std::size_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

/// 28 x 28 pictures in MNIST's files: for each digit a bar in another row, in noise.
void write_pictures(const std::string& prefix, std::size_t count) {
  constexpr std::size_t side = 28, digits = 10;
  std::string images = big(0x803) + big(count) + big(side) + big(side), labels = big(0x801) + big(count);
  std::minstd_rand random(static_cast<unsigned>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t digit = i % digits;
    for (std::size_t y = 0; y < side; ++y) {
      for (std::size_t x = 0; x < side; ++x) {
        const bool is_bar = y / 3 == digit && x >= 4 && x < 24;
        images += static_cast<char>((is_bar ? 200 : 0) + random() % 50);
      }
    }
    labels += static_cast<char>(digit);
  }
  files_test::write_text_file(prefix + "-images-idx3-ubyte", images);
  files_test::write_text_file(prefix + "-labels-idx1-ubyte", labels);
}

/// The beginning of the chapters' prose in ASCII, made once: it reads the whole project.
const std::string& sample_text() {
  static const std::string sample = [] {
    std::string text;
    for (const Chapter& chapter : chapters()) text += prose_of(chapter.text);
    std::erase_if(text, [](char c) { return c != '\n' && (c < ' ' || c > '~'); });
    return text.substr(0, 20'000);
  }();
  return sample;
}

}  // namespace

std::vector<Script> scripts(const std::string& text) {
  const std::string shown = "<!-- run: ", instead = "<!-- instead: ", not_run = "<!-- not run: ", end = " -->";
  const std::vector<std::string> lines = lines_of(text);
  std::vector<Script> list;
  Script next;
  bool is_shown = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto between = [&](const std::string& mark) {
      return lines[i].substr(mark.size(), lines[i].rfind(end) - mark.size());
    };
    if (lines[i] == "<!-- run each -->") {
      next.is_run_each = true;
    } else if (lines[i].starts_with(shown)) {
      is_shown = true;
    } else if (lines[i].starts_with(instead)) {
      next.instead.push_back(between(instead));
    } else if (lines[i].starts_with(not_run)) {
      next.why_not = between(not_run);
    } else {
      if (lines[i].starts_with("```")) {
        const bool is_script = lines[i] == "```sh", is_output = lines[i] == "```";
        next.line = i + 2;
        for (++i; i < lines.size() && lines[i] != "```"; ++i) {
          std::string command = lines[i];
          for (; is_script && command.ends_with("\\") && i + 1 < lines.size(); command += lines[++i])
            command.pop_back();
          if (is_script) next.commands.push_back(command);
          if (is_output && command.starts_with("$ ")) next.commands.push_back(command.substr(2));
          next.is_unmarked_output |= is_output && command.starts_with("thimble ");
        }
        if (!is_shown && (!next.commands.empty() || next.is_unmarked_output)) list.push_back(next);
      }
      next = {};
      is_shown = false;
    }
  }
  return list;
}

std::vector<std::string> commands_in_prose(const std::string& text) {
  static const std::regex span("`(thimble [a-z]+ [^`]*)`"), capitals("(^|[^A-Za-z0-9])[A-Z]{3,}($|[^A-Za-z0-9])");
  std::vector<std::string> list;
  bool is_code = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) is_code = !is_code;
    if (is_code || line.starts_with("<!--")) continue;
    for (std::sregex_iterator match(line.begin(), line.end(), span), last; match != last; ++match) {
      const std::string command = (*match)[1];
      if (command.find("...") == std::string::npos && !std::regex_search(command, capitals)) list.push_back(command);
    }
  }
  return list;
}

Place::Place() {
  const char* const path = std::getenv("THIMBLE_PROGRAM");
  if (path == nullptr) throw std::runtime_error("THIMBLE_PROGRAM names no program");
  const fs::path program = fs::absolute(path);
  fs::create_symlink(fs::absolute("docs"), folder_ / "docs");
  fs::create_symlink(program.parent_path().parent_path() / "examples", folder_ / "examples");
  fs::create_symlink(program, folder_ / "thimble");
  fs::create_directory(folder_ / "mnist");
  write_pictures(folder_ / "mnist/train", 200);
  write_pictures(folder_ / "mnist/t10k", 100);
  files_test::write_text_file(folder_ / "text.txt", sample_text());
  fs::copy_file(files_test::tests_folder() / "fuzz/corpus/tokenizer/gpt2", folder_ / "tokenizer.json");
}

Result Place::run(const std::string& command) const {
  files_test::write_text_file(folder_ / "command.sh", command + "\n");
  const std::string line = "cd '" + folder_.path() + "' && PATH=\"$PWD:$PATH\" THIMBLE_ISA=generic OMP_NUM_THREADS=2 " +
                           "sh command.sh > output.txt 2>&1";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, files_test::read_text_file(folder_ / "output.txt")};
}

Result run(const std::string& command) { return Place().run(command); }

}  // namespace book
