#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/interfaces/catch_interfaces_capture.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <set>

#include "support/skip.h"

namespace {

int skipped_cases = 0;

void say(const char* what, const std::string& reason) {
  static std::set<std::string> said;
  const std::string line =
      std::string(what) + ": " + Catch::getResultCapture().getCurrentTestName() + ": " + reason + "\n";
  if (said.insert(line).second) std::fputs(line.c_str(), stdout);
}

}  // namespace

void thimble_test::skip(const std::string& reason) {
  ++skipped_cases;
  say("SKIPPED", reason);
}

void thimble_test::skip_part(const std::string& reason) { say("SKIPPED IN PART", reason); }

bool thimble_test::is_ci() {
  const char* const text = std::getenv("CI");
  return text != nullptr && *text != '\0';
}

int main(int argc, char* argv[]) {
  const int status = Catch::Session().run(argc, argv);
  if (status != 0) return status == thimble_test::skipped_status ? 1 : status;
  return skipped_cases > 0 ? thimble_test::skipped_status : 0;
}
