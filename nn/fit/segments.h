#pragma once
// The parts of a step that a plan runs again, by name.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/fit/fit.h>

namespace thimble::nn {

/// A segment of the plan.
struct PlannedSegment {
  std::uint32_t first = 0, end = 0;  ///< nodes
  int depth = 0;                     ///< segments around it
  std::string path;                  ///< of its first node
  std::size_t kept_bytes = 0;        ///< of results and extras of only its nodes that it keeps while closed
  std::size_t dropped = 0;           ///< nodes whose result is dropped
};

/// The plan's segments in the order of their first nodes. `graph` is the recording that it was made for.
std::vector<PlannedSegment> planned_segments(const Plan& plan, const TapeGraph& graph);

/// Lines with nodes, path, kept bytes and dropped nodes, under their heads; empty for no segments.
std::string to_table(const std::vector<PlannedSegment>& segments);

}  // namespace thimble::nn
