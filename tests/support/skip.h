#pragma once
// What a machine lacks is told by name, never passed in silence: one mechanism for Catch2 2 and 3.

#include <string>

namespace thimble_test {

/// The status of a test program whose tests all passed but for some that were not run: ctest calls it skipped.
inline constexpr int skipped_status = 77;

/// The test case in progress is not run, as this machine lacks what it needs: prints `SKIPPED: <test case>: <reason>`.
/// The program ends with skipped_status, or with a failure where one is found. The caller returns.
void skip(const std::string& reason);

/// It runs, without a part that this machine lacks: prints `SKIPPED IN PART: <test case>: <reason>` once.
void skip_part(const std::string& reason);

/// Whether the environment is that of CI, where what every CI machine has must not be skipped: CI is set, and not
/// empty.
bool is_ci();

}  // namespace thimble_test
