#pragma once
// What running one operator takes, from its sizes and three numbers of a machine (the roofline of Williams, Waterman,
// Patterson 2009): the larger of its arithmetic and its memory traffic, and a fixed cost of calling it.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/graph.h>

namespace thimble::nn {

/// A machine as planning sees it.
struct Hardware {
  std::string name;
  std::string description;
  std::size_t memory_bytes = 0;    ///< of the device; 0: not known
  double multiply_adds_per_s = 0;  ///< that large products reach, in f32 (in f16 and bf16 where it has units for them)
  double bytes_per_s = 0;          ///< read and written together, beyond the caches
  double call_s = 0;               ///< of one operator, however small
};

/// Known machines, the present kind of CPU first. Throws ValueError, listing all names, for another one.
std::span<const Hardware> hardware_list();
const Hardware& hardware(std::string_view name);

/// Seconds of one node of a graph.
struct NodeTimes {
  double forward = 0;
  double remake = 0;  ///< of its result alone, where what it saves is there
  double backward = 0;
};

/// For every node.
std::vector<NodeTimes> node_times(const TapeGraph& graph, const Hardware& hardware);

}  // namespace thimble::nn
