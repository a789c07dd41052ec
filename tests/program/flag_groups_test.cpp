// Help by groups of flags: every flag of a command with groups belongs to one, and --help NAME shows it.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flag_groups.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using files_test::contains;
using thimble::bench::FlagGroup;

/// Calls `check` with every command and its parser.
template <class Check>
void for_each_command(Check check) {
  for (const thimble::bench::Command& one : thimble::bench::commands) {
    CLI::App program("", "thimble");
    one.add(program);
    for (CLI::App* const command : program.get_subcommands([](CLI::App*) { return true; })) check(*command);
  }
}

std::vector<const CLI::Option*> flags_of(const CLI::App& command) {
  return command.get_options([&](const CLI::Option* option) { return option != command.get_help_ptr(); });
}

std::set<std::string> words_of(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::set<std::string> words;
  for (std::string word; in >> word;) CHECK(words.insert(word).second);
  return words;
}

/// Flags at the start of a help's line: "  --batch N    Samples per step (8)".
std::set<std::string> shown_flags(const std::string& help) {
  std::istringstream in(help);
  std::set<std::string> flags;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("  --") || line.starts_with("  --help ")) continue;
    flags.insert(line.substr(2, line.find_first_of(" {[", 2) - 2));
  }
  return flags;
}

}  // namespace

TEST_CASE("flag groups: every flag of a command with groups is in exactly one, and every group is used", "[program]") {
  std::set<std::string> used;
  std::size_t grouped = 0;
  for_each_command([&](const CLI::App& command) {
    INFO(command.get_name());
    CHECK(thimble::bench::has_groups(command) == (flags_of(command).size() > thimble::bench::max_everyday_flags));
    if (!thimble::bench::has_groups(command)) return;
    ++grouped;
    for (const CLI::Option* const option : flags_of(command)) {
      const std::string name = option->get_name(option->get_positional());
      INFO(name);
      CHECK(std::ranges::count_if(thimble::bench::flag_groups(),
                                  [&](const FlagGroup& group) { return thimble::bench::is_in(group, *option); }) == 1);
      used.insert(name.substr(0, name.find('{')));
    }
  });
  CHECK(grouped == 5);
  std::set<std::string> listed;
  for (const FlagGroup& group : thimble::bench::flag_groups()) {
    CHECK(!contains("all-", std::string(group.name)));
    listed.merge(words_of(group.flags));
  }
  CHECK(listed == used);
  CHECK(words_of(thimble::bench::flag_groups().front().flags).size() <= thimble::bench::max_everyday_flags);
}

TEST_CASE("flag groups: help texts have at most two lines", "[program]") {
  for_each_command([](CLI::App& command) {
    thimble::bench::select_help(command, "");
    for (const CLI::Option* const option : flags_of(command)) {
      const std::string text = option->get_description();
      INFO(command.get_name() << " " << option->get_name() << ": " << text);
      CHECK(std::ranges::count(text, '\n') <= 1);
      CHECK(text.find("  ") == std::string::npos);
      CHECK(!text.empty());
      CHECK(text.back() != '.');
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 70);
    }
  });
}

TEST_CASE("flag groups: each group of a command's help has its flags, and all of them have all", "[program]") {
  const files_test::TemporaryFolder folder;
  if (!program_test::run(folder, "--version")) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  for_each_command([&](const CLI::App& command) {
    if (!thimble::bench::has_groups(command)) return;
    const std::string name = command.get_name();
    const auto help = [&](const std::string& asked) {
      const program_test::Output output = *program_test::run(folder, name + " " + asked);
      INFO(name << " " << asked << ": " << output.error);
      CHECK(output.status == 0);
      CHECK(contains(output.out, "Usage: thimble " + name));
      return output.out;
    };
    std::set<std::string> together;
    for (const FlagGroup& group : thimble::bench::flag_groups()) {
      std::set<std::string> expected;
      for (const CLI::Option* const option : flags_of(command)) {
        if (option->get_positional() || !thimble::bench::is_in(group, *option)) continue;
        expected.insert("--" + option->get_single_name());
      }
      INFO(name << " --help " << group.name);
      const bool is_everyday = group.name == "everyday";
      if (!expected.empty()) CHECK(shown_flags(help("--help " + std::string(group.name))) == expected);
      if (is_everyday) CHECK(shown_flags(help("--help")) == expected);
      if (!is_everyday) CHECK(contains(help("mlp -h"), "--help " + std::string(group.name) + " ") == !expected.empty());
      together.merge(expected);
    }
    CHECK(shown_flags(help("mlp --help all")) == together);
  });
  struct Row {
    std::string arguments;
    int status;
    std::string text;
  };
  for (const Row& row :
       {Row{"train --help nothing", 2,
            "--help: expected one of everyday, model, training, precision, lora, memory, ranks, files, output, "
            "kernels, all, got 'nothing'"},
        {"train --help quantization", 2, "all, got 'quantization'"},
        {"quantize --help lora", 2, "quantization, files, all, got 'lora'"},
        {"train --help --batch 3", 0, "Everyday flags"},
        {"pack --help", 0, "--capacity"},
        {"tokenizer encode --help", 0, "--special-as-text"},
        {"--help", 0, "quantize"}}) {
    const program_test::Output output = *program_test::run(folder, row.arguments);
    INFO(row.arguments << ": " << output.out << output.error);
    CHECK(output.status == row.status);
    CHECK(contains(row.status == 0 ? output.out : output.error, row.text));
  }
}

TEST_CASE("flag groups: a flag's old name is refused with the new one", "[program]") {
  const files_test::TemporaryFolder folder;
  if (!program_test::run(folder, "--version")) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  std::set<std::string> flags;
  for_each_command([&](const CLI::App& command) {
    for (const CLI::Option* const option : flags_of(command)) flags.insert("--" + option->get_single_name());
  });
  flags.erase("--graph");  // means something else in plan
  for (const thimble::bench::RenamedFlag& renamed : thimble::bench::renamed_flags) {
    const std::string old_name(renamed.old_name), name(renamed.name);
    INFO(old_name);
    CHECK(flags.contains(name));
    CHECK_FALSE(flags.contains(old_name));
    for (const char* const value : {"", "=on", " on"}) {
      const program_test::Output output =
          *program_test::run(folder, "train mlp --data synthetic " + old_name + value + " --steps 1");
      CHECK(output.status == 2);
      CHECK(output.error == "thimble: " + old_name + ": renamed, use " + name + "\n");
    }
  }
  const program_test::Output prompt = *program_test::run(folder, "generate char-gpt --weights /no --prompt --share");
  CHECK_FALSE(contains(prompt.error, "renamed"));  // the value of another flag
}

// ---- The library names options in backticks; users of the program know them as flags.

using thimble::bench::with_flags;

TEST_CASE("with_flags: options become flags, and other text stays", "[program]") {
  CHECK(with_flags("`micro_batches`: 3 does not divide `batch` 8") == "--micro-batches: 3 does not divide --batch 8");
  CHECK(with_flags("`fuses_optimizer`: `clip_norm` 0, `allows_lossy`=i8") ==
        "--fuse-optimizer: --clip 0, --allow-lossy=i8");
  for (const char* text : {"", "plain", "``", "`", "`A file`", "`batch", "batch`", "'a`b c`d'"}) {
    CHECK(with_flags(text) == text);
  }
  CHECK(with_flags("``batch``") == "`--batch`");
}

TEST_CASE("with_flags: every option that the library's texts name is a flag of the program", "[program]") {
  CLI::App program;
  thimble::bench::add_train(program);
  thimble::bench::add_plan(program);
  std::set<std::string> flags;
  for (const CLI::App* const command : program.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* const option : command->get_options()) flags.insert("--" + option->get_single_name());
  }
  std::set<std::string> unknown;
  std::size_t named = 0;
  const std::regex text("\"(?:[^\"\\\\]|\\\\.)*\""), option("`[a-z0-9_]+`");
  for (const char* const folder :
       {"models", "models/transformer", "models/training", "models/techniques", "models/planning", "models/datasets"}) {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() != ".cpp") continue;
      const std::string source = files_test::read_text_file(file.path().string());
      for (std::sregex_iterator at(source.begin(), source.end(), text), end; at != end; ++at) {
        const std::string words = at->str();
        for (std::sregex_iterator name(words.begin(), words.end(), option); name != end; ++name, ++named) {
          if (!flags.contains(with_flags(name->str()))) unknown.insert(name->str());
        }
      }
    }
  }
  INFO("first unknown: " << (unknown.empty() ? "none" : *unknown.begin()));
  CHECK(unknown.empty());
  CHECK(named > 100);
}
