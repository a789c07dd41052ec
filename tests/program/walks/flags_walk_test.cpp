// Gives every flag of every command and shows that it takes effect. The rows are in flags.txt, the flags come from the
// parsers. Verdicts go to flags_and_keys.txt in the build folder.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands.h>

#include "program/walks/walk.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using files_test::contains;
using walk_test::Words;

struct Row {
  std::string command, flag, given, with, verdict;
  int line = 0;
};

std::string stripped(std::string text) {
  text.erase(0, std::min(text.size(), text.find_first_not_of(' ')));
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// Splits at `at`; a | counts only as " | ", since a cell's text may contain one.
std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool ends = text[i] == at && (at != '|' || (i > 0 && text[i - 1] == ' ' && text[i + 1] == ' '));
    if (ends) parts.emplace_back();
    if (!ends) parts.back() += text[i];
  }
  for (std::string& part : parts) part = stripped(part);
  return parts;
}

// Arguments as groups: all before the first flag, then each flag with its values.
std::vector<std::string> groups_of(const std::string& arguments) {
  std::vector<std::string> groups{""};
  for (const std::string& word : walk_test::words_of(arguments)) {
    if (word.starts_with("--")) groups.emplace_back();
    groups.back() += (groups.back().empty() ? "" : " ") + word;
  }
  return groups;
}

std::string flag_of(const std::string& group) { return group.substr(0, group.find_first_of(" =")); }

// `base` with the names and flags of `given`.
std::string merged(const std::string& base, const std::string& given) {
  const std::vector<std::string> groups = groups_of(base), own = groups_of(given);
  std::string line = " " + (own[0].empty() ? groups[0] : own[0]);
  for (std::size_t i = 1; i < groups.size(); ++i) {
    const auto is_same = [&](const std::string& other) { return flag_of(other) == flag_of(groups[i]); };
    if (std::none_of(own.begin() + 1, own.end(), is_same)) line += " " + groups[i];
  }
  for (std::size_t i = 1; i < own.size(); ++i) line += " " + own[i];
  return line;
}

// Help texts by "command flag".
using Flags = std::map<std::string, std::string>;

Flags flags_of(const CLI::App& command, const std::string& prefix) {
  Flags flags;
  for (const CLI::Option* const option : command.get_options()) {
    std::string name = option->get_name(option->get_positional());
    name = name.substr(0, name.find('{'));
    if (name != "--help" && name != "-h,--help") {
      flags[prefix + command.get_name() + " " + name] = option->get_description();
    }
  }
  for (const CLI::App* const inner : command.get_subcommands({})) {
    flags.merge(flags_of(*inner, command.get_name() + " "));
  }
  return flags;
}

Flags all_flags() {
  Flags flags;
  for (const thimble::bench::Command& one : thimble::bench::commands) {
    CLI::App program("", "thimble");
    one.add(program);
    for (const CLI::App* const command : program.get_subcommands({})) flags.merge(flags_of(*command, ""));
  }
  return flags;
}

// A flag's default if its help ends with one, as in "Tokens to write (100)"; empty if the default is in words.
std::string default_of(const std::string& help) {
  const std::size_t open = help.rfind('(');
  if (open == std::string::npos || !help.ends_with(")")) return "";
  std::string value = help.substr(open + 1, help.size() - open - 2);
  if (value.ends_with(" MiB")) value.erase(value.size() - 4, 1);
  return value.find_first_of(" ;:,") == std::string::npos && !value.starts_with("--") && value != "chosen" &&
                 value != "all" && value != "unlimited"
             ? value
             : "";
}

// Another number close to this one; empty if `value` is a word.
std::string beside(const std::string& value) {
  std::size_t end = 0;
  try {
    const double number = std::stod(value, &end);
    if (value.find('.', 0) != std::string::npos) return std::to_string(0.9 * number) + value.substr(end);
    return std::to_string(static_cast<long long>(number) + 1) + value.substr(end);
  } catch (const std::invalid_argument&) {
    return "";
  }
}

// The table: rows, arguments common to a command's rows, and lines that make files.
struct Table {
  std::map<std::string, std::string> bases;  // "@name": arguments; "train": arguments of all its rows
  std::vector<Row> rows;                     // a row without a flag runs for its files
  std::vector<Row> modes;                    // `verdict` names flags without a visible effect in the mode `with`
};

Table read_table(const std::string& path) {
  Table table;
  std::istringstream in(files_test::read_text_file(path));
  std::string text;
  for (int line = 1; std::getline(in, text); ++line) {
    if (stripped(text).empty() || text.starts_with("#")) continue;
    if (const auto is = text.find(" = "); text.starts_with("@") && is != std::string::npos) {
      table.bases[stripped(text.substr(0, is))] = stripped(text.substr(is + 3));
      continue;
    }
    if (text.starts_with("!")) {
      table.rows.push_back({"", "", "", stripped(text.substr(1)), "", line});
      continue;
    }
    const std::vector<std::string> cells = split(text, '|');
    if (text.starts_with("%")) {
      table.modes.push_back({stripped(cells[0].substr(1)), "", "", cells.at(1), cells.at(2), line});
      continue;
    }
    INFO("flags.txt:" << line << ": " << text);
    REQUIRE(cells.size() == 4);
    const std::string flag = cells[1].substr(0, cells[1].find_first_of(" ="));
    for (const std::string& command : split(cells[0], ',')) {
      table.rows.push_back({command, flag, cells[1], cells[2], cells[3], line});
    }
  }
  return table;
}

class Walk {
 public:
  explicit Walk(Table table) : table_(std::move(table)), program_(std::getenv("THIMBLE_PROGRAM")) {
    const auto put = [&](const char* name, const std::string& text) {
      files_test::write_text_file(folder_ / name, text);
    };
    put("text.txt",
        files_test::read_text_file((files_test::tests_folder() / "program" / "walks" / "flags.txt").string()));
    const std::filesystem::path tokenizers = files_test::tests_folder() / "fuzz" / "corpus" / "tokenizer";
    std::filesystem::copy_file(tokenizers / "gpt2", folder_ / "tokenizer.json");
    std::filesystem::copy_file(tokenizers / "llama3", folder_ / "other.json");
    put("numbers.txt", "72 101 108 108 111 32 72 101");
    put("ends.txt", "72 0 256 299 101");
    put("special.txt", "to be<|endoftext|>or not");
    put("stages.txt", "4:8:2:4\n4:16:3:4\n4:8:2:4\n");
    put("other.txt", "4:8:5:4\n4:16:3:4\n4:8:2:4\n");
    put("other.csv", "id,lower,upper,size\n1,0,2,11\n2,1,3,21\n");
    put("hard.csv", "id,lower,upper,size\n0,5,10,1\n1,7,9,1\n2,2,3,6\n3,7,9,7\n4,1,6,4\n5,0,2,7\n");  // 11, greedily 12
  }

  std::string command_line(const Row& row, const std::string& given) const {
    std::string with = row.with;
    for (const auto& [name, arguments] : table_.bases) {
      if (!name.starts_with("@@") && (with == name || with.starts_with(name + " "))) {
        with = merged(arguments, with.substr(name.size()));
        break;
      }
    }
    const auto base = table_.bases.find("@@" + row.command);
    const std::string all = merged(base == table_.bases.end() ? "" : base->second, with);
    std::string line = row.command + merged(all, given);
    for (std::size_t at; (at = line.find("DISK")) != std::string::npos;)
      line.replace(at, 4, offload_test::disk_folder());
    return line;
  }

  program_test::Output run(const std::string& arguments) {
    const std::string line =
        "cd '" + folder_.path() + "' && '" + program_ + "' " + arguments + " > out~ 2> error~ < /dev/null";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, files_test::read_text_file(folder_ / "out~"),
            files_test::read_text_file(folder_ / "error~")};
  }

  // The output without the flag, run once per command line.
  const program_test::Output& plain(const std::string& arguments) {
    const auto found = plain_.find(arguments);
    return found != plain_.end() ? found->second : plain_.emplace(arguments, run(arguments)).first->second;
  }

  // Empty if the row holds.
  std::string fault(const Row& row) {
    if (row.verdict == "refused cuda" && has_gpu()) return "";
    if (contains(row.with, "DISK") && offload_test::disk_folder().empty()) return "";
    if (row.flag.empty()) {
      const program_test::Output made = run(row.with);
      return made.status == 0 ? "" : "status " + std::to_string(made.status) + ": " + made.error;
    }
    std::string before, after = row.given;
    if (const auto arrow = row.given.find(" -> "); arrow != std::string::npos) {
      const std::string name = row.flag.starts_with("--") ? row.flag + " " : "";
      before = row.given.substr(0, arrow);
      if (name.empty()) before = before.substr(before.find(' ') + 1);
      after = name + row.given.substr(arrow + 4);
    } else if (!row.flag.starts_with("--")) {
      after = row.given.substr(std::min(row.given.size(), row.given.find(' ') + 1));
    }
    const std::string with_flag = command_line(row, after);
    const Words verdict = walk_test::words_of(row.verdict.substr(0, row.verdict.find(';')));
    if (verdict.at(0) == "writes") std::filesystem::remove_all(folder_ / verdict.at(1));
    if (verdict[0] == "allows") {
      put_foreign();
      const program_test::Output refused = run(command_without(row));
      if (refused.status != 2 || !contains(refused.error, row.flag)) return "without it: " + refused.error;
    }
    const program_test::Output given = run(with_flag);
    const std::string told = "\n  " + with_flag + "\n  status " + std::to_string(given.status) + ": " + given.error;
    if (verdict[0] == "refused") {
      if (given.status != 2 && given.status != 3) return "not refused" + told;
      return contains(given.error, verdict.size() > 1 ? verdict[1] : row.flag) ? "" : "refused without its name" + told;
    }
    if (verdict[0] == "writes") {
      const std::filesystem::path path(folder_ / verdict.at(1));
      if (given.status != 0) return "failed" + told;
      const bool is_there = std::filesystem::is_directory(path) ? !std::filesystem::is_empty(path)
                                                                : std::filesystem::exists(path) && file_size(path) > 0;
      return is_there ? "" : verdict[1] + " is not written" + told;
    }
    if (verdict[0] == "allows") return given.status == 0 ? "" : "failed" + told;
    const bool is_about_status = verdict[0] == "status";
    if (is_about_status) return given.status == std::stoi(verdict.at(1)) ? "" : "another status" + told;
    const std::string without = before.empty() ? command_without(row) : command_line(row, before);
    const program_test::Output& was = plain(without);
    if (was.status != 0) return "fails without the flag:\n  " + without + "\n  " + was.error;
    if (given.status != 0) return "failed" + told;
    if (verdict[0] == "prints") return was.out != given.out ? "" : "prints the same" + told;
    const auto differences = walk_test::differences(was.out, given.out);
    if (verdict[0] == "same") return differences.empty() ? "" : "changes " + *differences.begin() + told;
    if (verdict[0] != "changes") return "no such verdict: " + verdict[0];
    if (verdict.size() == 1) return differences.empty() ? "changes nothing" + told : "";
    for (const std::string& key : Words(verdict.begin() + 1, verdict.end())) {
      const auto has = [&](const std::string& path) { return contains(path + "/", "/" + key + "/"); };
      if (std::none_of(differences.begin(), differences.end(), has)) {
        std::string list;
        for (const std::string& path : differences) list += " " + path;
        return "does not change " + key + ", but" + list + told;
      }
    }
    return "";
  }

  // The flags that a mode of a command accepts and ignores, except flags that the mode names.
  std::string ignored_flags(const Row& mode) {
    std::set<std::string> tried, ignored;
    const Words unseen = walk_test::words_of(mode.verdict);
    const std::string without = command_line(mode, "");
    const program_test::Output was = run(without);
    if (was.status != 0) return "the mode fails: " + without + "\n  " + was.error;
    for (const Row& row : table_.rows) {
      const bool is_file = row.verdict.starts_with("writes");
      const bool has_effect = row.verdict.starts_with("changes") || row.verdict.starts_with("prints") || is_file;
      if (row.command != mode.command || !row.flag.starts_with("--") || !has_effect) continue;
      const auto arrow = row.given.find(" -> ");
      const std::string given = arrow == std::string::npos ? row.given : row.flag + " " + row.given.substr(arrow + 4);
      const std::string with_flag = command_line(mode, given);
      const bool is_own = contains(without + " ", given + " ") || contains(given, "DISK");
      if (is_own || !tried.insert(given).second) continue;
      const program_test::Output now = run(with_flag);
      const bool is_named = std::find(unseen.begin(), unseen.end(), row.flag) != unseen.end();
      if (now.status == 2 || now.status == 3) continue;  // other rows check that the error names the flag
      if (now.status != 0) return "status " + std::to_string(now.status) + ": " + with_flag + "\n  " + now.error;
      const bool is_written = is_file && std::filesystem::exists(folder_ / walk_test::words_of(row.verdict).at(1));
      if (!is_written && !is_named && walk_test::differences(was.out, now.out).empty()) ignored.insert(given);
    }
    std::string list;
    for (const std::string& flag : ignored) list += "\n  " + flag;
    return list;
  }

  // Compares a run with a flag's default, as its help states it, with a run without the flag.
  std::string default_fault(const Row& row, const std::string& value) {
    if (contains(row.with, "DISK") && offload_test::disk_folder().empty()) return "";
    if (row.command == "reproduce") return "";  // prints bytes of the process
    const std::string with_flag = command_line(row, row.flag + " " + value);
    const program_test::Output was = plain(command_without(row)), given = run(with_flag);
    if (was.status != given.status) return "not the default, says the status: " + with_flag + "\n  " + given.error;
    if (was.status == 0) {
      const auto differences = walk_test::differences(was.out, given.out);
      if (!differences.empty()) return "not the default, says " + *differences.begin() + ": " + with_flag;
      const std::string other = beside(value);
      if (other.empty() || row.verdict.starts_with("same") || row.verdict.ends_with("; default unseen")) return "";
      const program_test::Output changed = run(command_line(row, row.flag + " " + other));
      if (changed.status == 0 && walk_test::differences(was.out, changed.out).empty()) {
        return "another default than " + value + " would not be seen: " + with_flag;
      }
      return "";
    }
    return was.error == given.error ? "" : "not the default: " + with_flag + "\n  " + given.error;
  }

  // Files that no command of the program writes.
  void put_foreign() const {
    const std::string content("\x7f\0foreign", 9);
    files_test::write_text_file(folder_ / "foreign.bin", content);
    std::filesystem::create_directories(folder_ / "foreign");
    files_test::write_text_file(folder_ / "foreign/report.html", content);
  }

  bool has_gpu() { return nlohmann::json::parse(plain("devices --json").out).at("cuda").at("found").get<bool>(); }

  const std::vector<Row>& rows() const { return table_.rows; }
  const std::vector<Row>& modes() const { return table_.modes; }

 private:
  // The command line of a row without its flag and value.
  std::string command_without(const Row& row) const {
    const std::string marked = command_line(row, row.flag.starts_with("--") ? row.flag : "");
    std::string line;
    for (const std::string& group : groups_of(marked)) {
      if (flag_of(group) != row.flag) line += (line.empty() ? "" : " ") + group;
    }
    return line;
  }

  Table table_;
  std::string program_;
  files_test::TemporaryFolder folder_;
  std::map<std::string, program_test::Output> plain_;
};

}  // namespace

TEST_CASE("flags walk: every flag of every command reaches its effect, or is refused by name", "[program]") {
  if (std::getenv("THIMBLE_PROGRAM") == nullptr) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  Walk walk(read_table((files_test::tests_folder() / "program" / "walks" / "flags.txt").string()));
  Flags left = all_flags();
  const Flags known = left;
  std::string list;
  for (const Row& row : walk.rows()) {
    INFO("flags.txt:" << row.line << ": " << row.command << " " << row.given << " | " << row.with << " | "
                      << row.verdict);
    if (!row.flag.empty()) CHECK(known.contains(row.command + " " + row.flag));
    const std::string fault = walk.fault(row);
    CHECK(fault == "");
    const auto first = left.find(row.command + " " + row.flag);
    if (first != left.end()) {
      const std::string value = default_of(first->second);
      if (!value.empty() && !row.given.starts_with(row.flag + "=")) CHECK(walk.default_fault(row, value) == "");
      left.erase(first);
    }
    if (!row.flag.empty()) {
      list += row.command + " " + row.given + (row.with.empty() ? "" : "  [" + row.with + "]") + ": " +
              (fault.empty() ? row.verdict : "FAILED: " + fault) + "\n";
    }
  }
  std::string missing;
  for (const auto& [flag, help] : left) missing += "\n  " + flag;
  INFO("flags without a row in tests/program/walks/flags.txt:" << missing);
  CHECK(left.empty());
  walk_test::write_list("flags", list);
  for (const Row& mode : walk.modes()) {
    INFO("flags.txt:" << mode.line << ": " << mode.command << " " << mode.with << " takes these and ignores them:");
    CHECK(walk.ignored_flags(mode) == "");
  }
}
