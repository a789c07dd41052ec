// The library names options in backticks, the program's users know them as flags.

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>

#include "support/catch.h"
#include "support/files.h"

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
