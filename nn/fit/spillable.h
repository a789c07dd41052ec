#pragma once
// What a recording tells of each storage that a plan may put away.

#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>

namespace thimble::nn {

struct Spillable {
  std::uint32_t node = TapeGraph::none;          ///< that makes it; none: no node does
  std::int32_t which = TapePlan::Spill::result;  ///< of that node's tensors
  std::uint32_t until = 0;                       ///< the program holds it, as a node
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  bool is_held = false;   ///< for longer than the tape can tell, or by a leaf
  bool is_saved = false;  ///< a backward reads it
};

/// One per storage of the graph.
std::vector<Spillable> spillables(const TapeGraph& graph);

}  // namespace thimble::nn
