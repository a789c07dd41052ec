// The program `thimble`: runs commands and turns errors into messages and exit statuses.
//
// Exit status (docs/training.md): 0 done; 2 bad input of any kind (one line on standard error, nothing written);
// 3 memory: no plan keeps the budget, a capacity or limit is too small, or memory ran out; 4 the last training loss is
// not finite (the last checkpoint is from before it); 5 a run or reproduction measured other values than predicted (all
// outputs are written), or a certificate does not hold; 6 done, but output is lost (standard output, or the curves of
// --log); 128 + n signal n ended a training run after a step.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flag_groups.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/memory/process/outside.h>
#include <thimble/version.h>

namespace {

using thimble::bench::bad_input_status;
using thimble::bench::memory_status;

int fail(const std::string& what, int status = bad_input_status) {
  thimble::bench::print_error(what);
  return status;
}

// The program and the command, for the hint "see 'thimble COMMAND --help'".
std::string command_of(const CLI::App& program) {
  std::string words = "thimble";
  for (auto chosen = program.get_subcommands(); !chosen.empty(); chosen = chosen.front()->get_subcommands())
    words += " " + chosen.front()->get_name();
  return words;
}

using thimble::bench::Command;
using thimble::bench::commands;

std::string names_of_commands() {
  std::string names;
  for (const Command& command : commands) names += (names.empty() ? "" : ", ") + std::string(command.name);
  return names;
}

/// Adds the command that the first word names, else all. A parser with all flags holds 130 KiB more heap until the
/// process exits.
void add_commands(CLI::App& program, std::string_view first_word) {
  const auto is_named = [&](const Command& command) { return command.name == first_word; };
  const bool is_known = std::any_of(std::begin(commands), std::end(commands), is_named);
  for (const Command& command : commands) {
    if (!is_known || is_named(command)) command.add(program);
  }
}

/// Refuses empty values: the parser would read the next word as the value of `--flag=` and drop an empty argument.
void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return;
    if (word.empty()) throw thimble::ValueError("expected a value, got an empty text");
    if (!word.starts_with("--")) continue;
    const std::size_t equals = word.find('=');
    const bool is_empty =
        equals == std::string_view::npos ? i + 1 < argc && *argv[i + 1] == '\0' : equals + 1 == word.size();
    if (is_empty) {
      throw thimble::ValueError(std::string(word.substr(0, equals)) + ": expected a value, got an empty text");
    }
  }
}

/// The group of flags after --help, or an empty text.
std::string_view group_asked_for(int argc, char** argv) {
  for (int i = 2; i + 1 < argc; ++i) {
    const std::string_view word = argv[i], next = argv[i + 1];
    if ((word == "--help" || word == "-h") && !next.starts_with('-')) return next;
  }
  return "";
}

int help(CLI::App& program, const CLI::CallForHelp& asked, std::string_view group) {
  for (CLI::App* command : program.get_subcommands()) {
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    thimble::bench::select_help(*command, group);
  }
  return program.exit(asked);
}

/// "--graph: renamed, use --cuda-graph" if a word is a flag's old name and not a flag of the command; else empty.
std::string renamed_flag(CLI::App& program, int argc, char** argv) {
  const std::vector<CLI::App*> commands = program.get_subcommands();
  for (const std::string_view word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    for (const thimble::bench::RenamedFlag& flag : thimble::bench::renamed_flags) {
      if (word.substr(0, word.find('=')) != flag.old_name) continue;
      if (!commands.empty() && commands[0]->get_option_no_throw(std::string(flag.old_name)) != nullptr) continue;
      return std::string(flag.old_name) + ": renamed, use " + std::string(flag.name);
    }
  }
  return "";
}

/// Rewords an error of the command-line parser to name the flag, the expected value and the given one.
std::string in_own_words(const CLI::App& program, const CLI::ParseError& error, const std::string& command) {
  using thimble::quote;
  const std::string text = error.what(), kind = error.get_name(), first = text.substr(0, text.find_first_of(": "));
  const auto between = [&](std::string_view begin, std::string_view end) {
    const std::size_t from = text.find(begin) + begin.size();
    return text.substr(from, end.empty() ? end.npos : text.find(end, from) - from);
  };
  const auto is = [&](std::string_view part) { return text.find(part) != text.npos; };
  const std::vector<std::string> words = program.remaining(true);
  const std::string word = words.empty() ? "" : words.front();
  if (kind == "RequiredError" ? is("subcommand") : is("not expected: ") && command == "thimble") {
    return "expected a command, got " + (word.empty() ? "none" : quote(word));
  }
  if (is("not expected: ")) {
    if (word.starts_with('-')) return word + ": expected a flag of '" + command + "', got another";
    return "expected no further argument, got " + quote(word);
  }
  if (kind == "RequiredError") return "expected " + first + ", got none";
  if (kind == "ConversionError" && is(" = ")) {  // a flag without a value got one; others parse their values themselves
    return between("convert: ", " = ") + ": expected no value, got " + quote(between(" = ", ""));
  }
  if (kind != "ArgumentMismatch") return text;
  return first +
         (is(" received ") ? ": expected one value, got " + between(" received ", "") : ": expected a value, got none");
}

int run(int argc, char** argv) {
  thimble::kernels::set_from_environment();
  refuse_empty_values(argc, argv);
  CLI::App program("Trains models in a known number of bytes.", "thimble");
  program.footer(
      "exit status: 0 done; 2 bad input; 3 memory (no plan keeps the budget, a limit has no room, out of memory); 4 a "
      "last loss that is not finite; 5 measured otherwise than predicted; 6 standard output, --log or --trace is "
      "incomplete");
  program.set_version_flag("--version", "thimble " THIMBLE_VERSION);
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc > 2 && (first == "--version" || first == "--help" || first == "-h")) {
    return fail(std::string(first) + ": expected no further argument, got " + thimble::quote(argv[2]) +
                "; see 'thimble --help'");
  }
  add_commands(program, first);
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) {
      return fail("expected a command, got none; commands: " + names_of_commands() + "; see 'thimble --help'");
    }
  } catch (const CLI::CallForHelp& asked) {
    return help(program, asked, group_asked_for(argc, argv));
  } catch (const CLI::Success& asked) {  // --version
    return program.exit(asked);
  } catch (const CLI::RuntimeError& status) {  // a command finished with a status
    return status.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (const std::string renamed = renamed_flag(program, argc, argv); !renamed.empty()) return fail(renamed);
    const std::string command = command_of(program);
    const std::string names = command == "thimble" ? "; commands: " + names_of_commands() : "";
    return fail(in_own_words(program, error, command) + names + "; see '" + command + " --help'");
  }
  return 0;
}

/// Flushes standard output. Returns `status`, or output_lost_status if `status` is 0 and the flush failed.
int with_output(int status) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return status;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return fail("standard output could not be written" + why, status == 0 ? thimble::bench::output_lost_status : status);
}

int run_safely(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(thimble::bench::out_of_memory, memory_status);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(error.path1().string() + ": " + error.code().message());
  } catch (const std::exception& error) {
    return fail(error.what(), thimble::bench::status_of(std::current_exception()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  thimble::memory::bound_heap_and_stacks();
  std::signal(SIGPIPE, SIG_IGN);  // a run survives a reader that closes the pipe
  return with_output(run_safely(argc, argv));
}
