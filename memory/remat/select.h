#pragma once
// Which tensors to keep: options of one block for the chain solver, and the choice over a whole network.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>
#include <thimble/memory/remat/kept_space.h>

namespace thimble::remat {

/// A selection with its needs.
struct KeptPlan {
  Selection selection;
  GraphCost cost;        ///< simulated: cost.peak_bytes is exact on the numbers
  Time lower_bound = 0;  ///< no selection within the bound that was asked for costs less; 0 where none is known
};

/// Pareto-optimal selections of one block, from "recompute nothing" to the fewest kept bytes, by falling kept bytes:
/// the vertices of the lower convex hull of (kept bytes, cost), each found as a minimum cut, at most `limit` (>= 2) of
/// them. Where there are more, those stay that lie farthest below the line between their neighbours. Throws ValueError
/// as validate(graph) does, when the graph has several segments or the limit is below 2.
std::vector<KeptPlan> block_options(const Graph& block, std::size_t limit = 8);

/// A selection of a block as an option of a chain's stage. The stage's output is the first output of the last operator;
/// when the selection keeps it, the option keeps_output. Other results are shared tensors, whose numbers in the chain
/// (Option::kept_shared) are for the caller to fill in, and not in the option's bytes. Given tensors are the chain's
/// or live all through the step; their gradients are d_i and the parameters' gradients. forward_time is the sum of the
/// operators' costs and recompute_time the re-runs'; backward_time is 0, for the caller to fill in. Throws as
/// simulate() does.
Option chain_option(const Graph& block, const Selection& selection, std::string name);

/// The cost at some kept bytes on the lower convex hull of a space (Lagrangian relaxation, Everett 1963): no choice
/// within these bytes costs less. Where none is within them, the cost of the choice with the fewest. Refines the hull
/// there.
Time hull_cost(KeptSpace& space, Bytes kept_bytes);

// ---- Minimum cut of a directed network (Dinic 1970): level graphs by breadth-first search, blocking flows with an
// explicit path. The selection of kept tensors (kept_space.h) is one.

/// Products of bytes and times, exactly: both are below 2^58.
__extension__ using Wide = __int128;

class MinCut {
 public:
  /// A network of `nodes` nodes, the source and the sink besides.
  explicit MinCut(std::size_t nodes) : first_(nodes + 2, none) {}

  std::size_t source() const noexcept { return first_.size() - 2; }
  std::size_t sink() const noexcept { return first_.size() - 1; }

  /// An edge with its capacity, >= 0.
  void add(std::size_t from, std::size_t to, Wide capacity);

  /// After the maximum flow: for each node, whether the source still reaches it. That is the smallest of the source
  /// sides of minimum cuts.
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
  std::vector<Edge> edges_;  // an edge and its reverse stand side by side
  std::vector<std::int32_t> level_;
  std::vector<std::uint32_t> current_;
  std::vector<std::uint32_t> queue_;
};

// ---- A lower bound of the time that recomputing takes in a number of bytes.
//
// Proof. Take any way of running forward, re-runs and backwards, whatever is run again and however often, that runs the
// backwards after the forward and from the last operator to the first. Look at the moment when the backward of operator
// v begins. Let K be the tensors in memory, all inputs of this backward among them. Each tensor that a later backward
// reads is in K or is made by an operator that runs again after this moment, and so is each tensor that such an
// operator takes. So K and the set R of the operators that run again are a choice as kept_space.h describes them, of
// the operators up to v, where the tensors that v reads are given. The kept tensors of the choice are part of K: their
// bytes and the ones that v reads are at most the bytes there are. The time of R is at least the least cost of a choice
// within these bytes, and that is at least the lower convex hull of all choices at these bytes (Lagrangian relaxation,
// Everett 1963), which minimum cuts give exactly. The bound is the largest of several v, the last operator among them.
// Gradients and temporaries count nothing, because some are windows of others. Where the temporaries of backwards are
// memory apart, the ones of v are not there for K, either: "begins" is then the worst moment of v's backward.

class TimeBound {
 public:
  /// Throws ValueError as validate(graph) does.
  explicit TimeBound(const Graph& graph, bool counts_temporaries = false);

  /// The time that any run which holds at most `bytes` of the graph's tensors at each moment pays beyond one that keeps
  /// everything. More bytes never give more.
  Time at(Bytes bytes);

 private:
  struct Moment {
    Bytes read_bytes = 0;                // by the backward of the moment, with its temporaries where they count
    std::unique_ptr<const Graph> graph;  // the space points to it
    std::unique_ptr<KeptSpace> space;
  };
  std::vector<Moment> moments_;
};

}  // namespace thimble::remat
