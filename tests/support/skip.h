#pragma once
// Reports by name, never silently, whatever a machine lacks: one mechanism for Catch2 2 and 3.

#include <string>

namespace thimble_test {

/// The status of a test program whose tests all passed or were skipped: ctest calls it skipped.
inline constexpr int skipped_status = 77;

/// Skips the test case in progress, which this machine cannot run: prints `SKIPPED: <test case>: <reason>`. The program
/// ends with skipped_status, or with a failure if there is one. The caller must return.
void skip(const std::string& reason);

/// Runs the test case without a part that this machine cannot run: prints `SKIPPED IN PART: <test case>: <reason>`
/// once.
void skip_part(const std::string& reason);

/// Whether this is CI (CI is set, and not empty), where a feature of every CI machine must not be skipped.
bool is_ci();

}  // namespace thimble_test
