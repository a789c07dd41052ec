// The program `thimble`: its commands, and what an error looks like from outside.
//
// Exit status: 0 done, 2 bad input of any kind (one line on standard error, nothing written), 3 a budget that no plan
// keeps, a capacity that was not met, or a reproduction that measured something else than was predicted, 4 a training
// run whose last loss is not finite (all that was asked for is written), 5 a certificate that does not hold.

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include <CLI/CLI.hpp>

#include <thimble/bench/commands.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/version.h>

namespace {

constexpr int bad_input = 2;
constexpr int infeasible = 3;

// `text` on one line: what an out-of-memory table or a parser puts on several is joined by "; ".
std::string one_line(const std::string& text) {
  std::string line;
  bool is_break = false;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      is_break = true;
      continue;
    }
    if (is_break && c == ' ') continue;
    if (is_break && !line.empty()) line += "; ";
    is_break = false;
    line += c;
  }
  return line;
}

int fail(const std::string& what, int status = bad_input) {
  std::fflush(stdout);
  std::fprintf(stderr, "thimble: %s\n", one_line(what).c_str());
  return status;
}

// The command line up to the command, for the hint of where to read on.
std::string command_of(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "thimble" : "thimble " + chosen.front()->get_name();
}

std::string names_of_commands(const CLI::App& program) {
  std::string names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

void add_commands(CLI::App& program) {
  namespace bench = thimble::bench;
  bench::add_reproduce(program);
  bench::add_plan(program);
  bench::add_train(program);
  bench::add_certify(program);
  bench::add_pack(program);
  bench::add_quantize(program);
  bench::add_inspect(program);
  bench::add_devices(program);
  bench::add_models(program);
}

int run(int argc, char** argv) {
  CLI::App program("Trains models in a known number of bytes.", "thimble");
  program.set_version_flag("--version", "thimble " THIMBLE_VERSION);
  add_commands(program);
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) {
      return fail("no command; allowed: " + names_of_commands(program) + "; see 'thimble --help'");
    }
  } catch (const CLI::Success& asked) {  // --help, --version
    return program.exit(asked);
  } catch (const CLI::RuntimeError& status) {  // a command was done, and its result is a status
    return status.get_exit_code();
  } catch (const CLI::ParseError& error) {
    const std::string command = command_of(program);
    const std::string allowed = command == "thimble" ? "; commands: " + names_of_commands(program) : "";
    return fail(error.what() + allowed + "; '" + command + " --help' lists what is allowed");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const thimble::nn::BudgetError& error) {
    return fail(error.what(), infeasible);
  } catch (const std::bad_alloc&) {
    return fail("the process is out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
