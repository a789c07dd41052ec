#pragma once
// Lists the segments that a plan recomputes, by name.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

struct PlannedSegment {
  std::uint32_t first = 0, end = 0;  ///< nodes
  int depth = 0;                     ///< number of enclosing segments
  std::string path;                  ///< of its first node
  std::size_t kept_bytes = 0;        ///< results and extras that it keeps while closed; nested segments not included
  std::size_t dropped = 0;           ///< nodes whose result it drops; nested segments not included
};

/// The plan's segments in the order of their first nodes. `graph` must be the recording of the plan.
std::vector<PlannedSegment> planned_segments(const Plan& plan, const TapeGraph& graph);

/// A table of nodes, path, kept bytes and dropped nodes, with headings; empty without segments.
std::string to_table(const std::vector<PlannedSegment>& segments);

}  // namespace thimble::nn
