#pragma once
// Runs the program `thimble` from a test.

#include <cstdlib>
#include <optional>
#include <string>

#include <sys/wait.h>

#include "files.h"

namespace program_test {

struct Output {
  int status = -1;
  std::string out, error;
};

/// Runs the program in THIMBLE_PROGRAM with these arguments; nullopt if the variable is not set. Its output goes
/// through two files in `folder`.
inline std::optional<Output> run(const files_test::TemporaryFolder& folder, const std::string& arguments) {
  const char* const path = std::getenv("THIMBLE_PROGRAM");
  if (path == nullptr) return std::nullopt;
  const std::string out = folder / "stdout.txt", error = folder / "stderr.txt";
  const std::string line = std::string("'") + path + "' " + arguments + " > '" + out + "' 2> '" + error + "'";
  const int status = std::system(line.c_str());
  return Output{WIFEXITED(status) ? WEXITSTATUS(status) : -1, files_test::read_text_file(out),
                files_test::read_text_file(error)};
}

}  // namespace program_test
