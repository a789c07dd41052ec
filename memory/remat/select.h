#pragma once
// Which tensors to keep: options of one block for the chain solver, and the choice over a whole network.

#include <cstddef>
#include <string>
#include <vector>

#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>

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

class KeptSpace;

/// The cost at some kept bytes on the lower convex hull of a space: no choice within these bytes costs less. Where none
/// is within them, the cost of the choice with the fewest. Refines the hull there.
Time hull_cost(KeptSpace& space, Bytes kept_bytes);

/// The cheapest selection found whose kept bytes are within a budget. Follows the hulls of the network's components in
/// order of cost per byte, which is optimal at every vertex, then fills what is left of the budget by single changes.
/// lower_bound is the hull's value at the budget (Lagrangian relaxation, Everett 1963). Throws ValueError as
/// validate(graph) does, InfeasibleBudget with the fewest bytes that can be kept.
KeptPlan select_kept(const Graph& graph, Bytes kept_bytes);

}  // namespace thimble::remat
