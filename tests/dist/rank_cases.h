#pragma once
// Requirements on every back end, as one table for all: each case runs on all ranks of a communicator and throws if a
// byte is wrong. The oracle is a formula of a byte's sender, receiver and position.

#include <functional>
#include <string>
#include <vector>

#include <thimble/dist/communicator.h>

namespace thimble_test {

struct RankCase {
  std::string name;
  std::function<void(thimble::dist::Communicator&)> run;
};

/// Cases that end well.
const std::vector<RankCase>& rank_cases();

/// Cases that end with a RankError on some rank: unequal sizes, a rank that is too late.
struct RankFault {
  std::string name;
  std::vector<std::string> texts;  ///< parts of the error's text
  std::function<void(thimble::dist::Communicator&)> run;
};
const std::vector<RankFault>& rank_faults();

/// Throws an Error with the text unless `is_right`.
void require(bool is_right, const std::string& text);

}  // namespace thimble_test
