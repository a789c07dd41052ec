#pragma once
// Selections of tensors to keep: options of one block for the chain solver, and bounds on the time of any selection.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>
#include <thimble/memory/remat/kept_space.h>

namespace thimble::remat {

/// A selection with its cost.
struct KeptPlan {
  Selection selection;
  GraphCost cost;        ///< simulated: cost.peak_bytes is exact for the graph's numbers
  Time lower_bound = 0;  ///< no selection within the requested limit costs less; 0 if no bound is known
};

/// Pareto-optimal selections of one block, from "recompute nothing" to the fewest kept bytes, by falling kept bytes:
/// the vertices of the lower convex hull of (kept bytes, cost), each found as a minimum cut, at most `limit` (>= 2) of
/// them. Where there are more, those stay that lie farthest below the line between their neighbours. Throws ValueError
/// as validate(graph) does, when the graph has several segments or the limit is below 2.
std::vector<KeptPlan> block_options(const Graph& block, std::size_t limit = 8);

/// A selection of a block as an option of a chain's stage. The stage's output is the first output of the last operator;
/// when the selection keeps it, the option keeps_output. Other results are shared tensors: the option's bytes exclude
/// them, and the caller fills in their numbers in the chain (Option::kept_shared). Given tensors belong to the chain or
/// live all through the step; their gradients are d_i and the parameters' gradients. forward_time is the sum of the
/// operators' costs, recompute_time the cost of the re-runs. The caller fills in backward_time. Throws as simulate()
/// does.
Option chain_option(const Graph& block, const Selection& selection, std::string name);

/// The cost at kept_bytes on the lower convex hull of a space (Lagrangian relaxation, Everett 1963): no choice within
/// kept_bytes costs less. If no choice fits, the cost of the choice with the fewest bytes. Refines the hull around the
/// result.
Time hull_cost(KeptSpace& space, Bytes kept_bytes);

// ---- Minimum cut of a directed network (Dinic 1970): level graphs by breadth-first search, blocking flows with an
// explicit path. KeptSpace selects kept tensors with it.

/// Exact products of bytes and times, which are below 2^58.
__extension__ using Wide = __int128;

class MinCut {
 public:
  /// A network of `nodes` nodes plus source and sink.
  explicit MinCut(std::size_t nodes) : first_(nodes + 2, none) {}

  std::size_t source() const noexcept { return first_.size() - 2; }
  std::size_t sink() const noexcept { return first_.size() - 1; }

  /// An edge with its capacity, >= 0.
  void add(std::size_t from, std::size_t to, Wide capacity);

  /// Whether the source still reaches each node after the maximum flow: the smallest source side of a minimum cut.
  std::vector<bool> source_side();

 private:
  static constexpr std::uint32_t none = 0xFFFFFFFFU;
  struct Edge {
    std::uint32_t to;
    std::uint32_t next;  // of the same node
    Wide capacity;       // left
  };

  bool find_levels();
  void block();

  std::vector<std::uint32_t> first_;
  std::vector<Edge> edges_;  // each edge is followed by its reverse
  std::vector<std::int32_t> level_;
  std::vector<std::uint32_t> current_;
  std::vector<std::uint32_t> queue_;
};

// ---- A lower bound on the time of recomputing within a number of bytes.
//
// Proof. Take any run of forward, re-runs and backwards that runs the backwards after the forward, from the last
// operator to the first. Look at the moment when the backward of operator v begins. Let K be the tensors in memory,
// among them all inputs of this backward. Let R be the operators that run again after this moment. Each tensor that a
// later backward reads or that an operator of R takes is in K or is made by R. So K and R form a choice, as in
// kept_space.h, of the operators up to v, with the tensors that v reads as given ones. The choice's kept tensors are a
// subset of K, so their bytes plus the bytes that v reads are within the limit. R takes at least the least time of a
// choice within these bytes, which is at least the lower convex hull of all choices at these bytes (Lagrangian
// relaxation, Everett 1963), which minimum cuts give exactly. The bound is the largest over several v, among them the
// last operator. Bytes of gradients and temporaries at that moment reduce the limit if K cannot use their memory.

/// The bytes of gradients and temporaries at the largest need of each operator's backward, without gradients that it
/// may write over others. For a graph without windows.
std::vector<Bytes> bytes_around_backwards(const Graph& graph);

class TimeBound {
 public:
  /// `around` has the bytes beside the tensors when each operator's backward begins; empty for none. Throws ValueError
  /// as validate(graph) does.
  explicit TimeBound(const Graph& graph, std::span<const Bytes> around = {});

  /// Least extra time of a run that never holds more than `bytes` of the graph's tensors, beyond a run that keeps all.
  /// Never rises with `bytes`.
  Time at(Bytes bytes);

 private:
  struct Moment {
    Bytes read_bytes = 0;                // by the moment's backward, and those around it
    std::unique_ptr<const Graph> graph;  // the space points to it
    std::unique_ptr<KeptSpace> space;
  };
  std::vector<Moment> moments_;
};

}  // namespace thimble::remat
