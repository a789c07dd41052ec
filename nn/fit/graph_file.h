#pragma once
// Reads a training step of any program from a file, and plans it.
//
// docs/graphs.md specifies the format (version 1): values with bytes, nodes with seconds in forward order, the values
// that each backward reads, and the values that are views of others. A plan keeps or recomputes the values that
// backward reads (memory/remat/graph.h has the rules of a step) and gives every buffer an offset.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/memory/placement/placement.h>
#include <thimble/memory/remat/graph_timeline.h>
#include <thimble/memory/remat/select.h>

namespace thimble::nn {

/// A step from a file. The graph's first tensors are the file's values. A view is a tensor without users; they use the
/// viewed value instead. A node that makes only views gets an extra tensor of 0 bytes after all values. Costs are in
/// nanoseconds.
struct StepGraph {
  std::string name;
  remat::Graph graph;
  std::size_t value_count = 0;
  std::size_t alignment = 64;  ///< of offsets
  double forward_s = 0;        ///< of all nodes
  double backward_s = 0;       ///< of all backwards; 0 if the file has none
};

/// Parses the text of a file. Throws FileError, naming `source`, unless it is a graph of version 1; the message has the
/// first wrong key, its value and the expected one.
StepGraph parse_graph(std::string_view json, const std::string& source);

/// Parses a file of at most 256 MiB.
StepGraph read_graph(const std::string& path);

/// A schedule for a step, with an offset for every buffer.
struct GraphPlan {
  /// A plan's bytes before placement, and its seconds.
  struct Point {
    std::size_t peak_bytes = 0;
    double step_s = 0;
  };
  std::size_t budget_bytes = 0;  ///< 0 means no budget
  remat::Selection selection;
  remat::GraphTimeline timeline;
  std::vector<std::size_t> offsets;  ///< of timeline.buffers
  std::size_t peak_bytes = 0;        ///< largest sum of live bytes at an event, as an allocator counts
  std::size_t height_bytes = 0;      ///< of the placed buffers; within the budget
  std::size_t keep_everything_bytes = 0, smallest_bytes = 0;  ///< peaks of the fastest and of the smallest plan found
  double recompute_s = 0;
  double step_s = 0;  ///< forward, recomputing and backward
  /// Lower bound of step_s within the budget; without one, within peak_bytes (memory/remat/select.h).
  double least_step_s = 0;
  /// Upper bound of the plan's excess over the fastest possible: 0.01 is 1 %.
  double time_gap() const { return least_step_s > 0 ? step_s / least_step_s - 1 : 0; }
  std::vector<Point> points;  ///< all plans found, by falling peak
};

/// The fastest plan found whose placed buffers fit the budget; 0 plans without one and keeps everything. Throws
/// BudgetError (nn/fit/fit.h), which names the smallest budget with a plan.
GraphPlan plan_graph(const StepGraph& step, std::size_t budget_bytes);

/// The plan as JSON, for programs that execute it, and as text of a few lines. docs/graphs.md describes both.
std::string to_json(const StepGraph& step, const GraphPlan& plan);
std::string to_text(const StepGraph& step, const GraphPlan& plan);

}  // namespace thimble::nn
