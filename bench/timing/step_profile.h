#pragma once
// Where the time of a training step goes, by kind of operator.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/tape.h>

namespace thimble::bench {

/// All nodes of one operator in a recording.
struct OperatorTime {
  std::string name;
  std::int64_t calls = 0;
  double forward_s = 0, recompute_s = 0, backward_s = 0;
  /// Bytes that the operator cannot do without: forward its operands and its result, backward what it saved, the
  /// result's gradient and the gradients that are asked for, each once. 0 for views.
  double forward_bytes = 0, backward_bytes = 0;
  double multiply_adds = 0;  ///< of forward and backward, re-runs left out

  double seconds() const { return forward_s + recompute_s + backward_s; }
};

/// The operators of a recording, the slowest first. Throws ValueError when the times are those of another recording.
std::vector<OperatorTime> operator_times(const TapeGraph& graph, const TapeTimes& times);

/// Multiply-adds of a node's forward and backward. Backward counts the forward's once for each of the first two
/// operands that need a gradient; attention's (two products forward, five backward) two and a half times.
double multiply_adds(const TapeGraph::Node& node);
/// Of all nodes.
double multiply_adds(const TapeGraph& graph);

}  // namespace thimble::bench
