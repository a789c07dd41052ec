#pragma once
// Selections of a graph that lower its peak; kept_space.h counts only kept bytes.
//
// Policy
// - A moment is the backward of one operator with the recomputing right before it; the first moment also has the end of
//   the forward. A byte has a price at each moment. A kept tensor pays from the first moment to its last use, a
//   recomputed tensor from its first use to its last. For given uses the cheapest selection is a minimum cut.
// - The total price rises. At each total price, the moments' prices follow the peak: a fraction of the price moves to
//   the moment where the last selection needs most (fictitious play of the time against the peak, Brown 1951). The uses
//   come from the last selection.
// - After each price, single tensors are kept or dropped as long as this lowers the sum of time and price. In small
//   graphs operators also run again with their inputs kept, and in the end all pairs of such changes are tried.
// - If operators may run again more than once, tensors are also dropped between two uses, even in the forward. Small
//   graphs try such drops along with the other changes. Large graphs try them afterwards, the most promising first and
//   with a work limit per price, and fill gaps between plans.
// - If at most 12 tensors are made, all schedules follow: shortest paths over the sets of tensors in memory.
// - Every selection on the way is simulated. The Pareto front of peak and cost remains.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <thimble/memory/remat/select.h>

namespace thimble::remat {

/// An operator may run again once, for a backward, or as often as it helps, even in the forward.
enum class Reruns : std::uint8_t { once, any };

/// At most `limit` plans by falling peak and rising cost, beginning with "recompute nothing". Throws ValueError as
/// validate(graph) does, and when the graph has several segments.
std::vector<KeptPlan> peak_options(const Graph& graph, std::size_t limit, Reruns reruns);

}  // namespace thimble::remat
