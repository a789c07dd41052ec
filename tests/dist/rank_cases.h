#pragma once
// What every back end must do, one table for all: each case runs on all ranks of a communicator and throws where a byte
// is wrong. The oracle is a formula of who sent a byte and where it stands.

#include <functional>
#include <string>
#include <vector>

#include <thimble/dist/communicator.h>

namespace thimble_test {

struct RankCase {
  std::string name;
  std::function<void(thimble::dist::Communicator&)> run;
};

/// Those that end well.
const std::vector<RankCase>& rank_cases();

/// Those that a RankError ends on some rank: sizes that differ, a rank that is not there in time.
struct RankFault {
  std::string name;
  std::vector<std::string> texts;  ///< what the error says
  std::function<void(thimble::dist::Communicator&)> run;
};
const std::vector<RankFault>& rank_faults();

/// Throws an Error with the text where `is_right` is false.
void require(bool is_right, const std::string& text);

}  // namespace thimble_test
