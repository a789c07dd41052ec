#pragma once
// Selections of a graph that lower its peak, where kept_space.h knows only the bytes that are kept.
//
// Policy
// - A moment is the backward of one operator with the recomputing right before it; the first one has the end of the
//   forward, too. A byte has a price at each moment. A kept tensor pays from the first moment to its last use, a
//   recomputed one from its first use to its last. For given uses the cheapest selection is a minimum cut.
// - For a rising price of the whole, the prices of moments follow the peak: a share of them moves to the moment where
//   the last selection needs most (fictitious play of the time against the peak, Brown 1951). Uses are those of the
//   last selection.
// - After each price single tensors are kept or dropped as long as that lowers time and price together. In small graphs
//   operators are also run again with their inputs kept, and in the end all pairs of such changes are tried.
// - Where operators may run again more than once, tensors are also dropped between two uses, in the forward, too: in
//   small graphs among the other changes, in large ones after them, the most promising first and each price with its
//   share of the work, and gaps between plans are filled.
// - All selections on the way are simulated, and the ones stay that no other betters in peak and cost.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/memory/remat/select.h>

namespace thimble::remat {

/// How often an operator may run again: once, for a backward; or as often as it helps, for a forward, too.
enum class Reruns : std::uint8_t { once, any };

/// By falling peak and rising cost, at most `limit`, from "recompute nothing" on. Throws ValueError as validate(graph)
/// does, and when the graph has several segments.
std::vector<KeptPlan> peak_options(const Graph& graph, std::size_t limit, Reruns reruns);

}  // namespace thimble::remat
