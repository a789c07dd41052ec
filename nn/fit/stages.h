#pragma once
// A recording as a chain of stages, each with several ways of keeping less.

#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/spilling.h>

namespace thimble::nn {

/// The chain of a recording and what its options mean for the nodes. Times are in nanoseconds.
struct StagedGraph {
  struct Stage {
    std::uint32_t first = 0, end = 0;      ///< nodes
    std::vector<std::vector<Fate>> fates;  ///< per option, of the nodes of its span; option 0 keeps everything
    std::vector<std::vector<TapePlan::Spill>> spills;  ///< per option
  };
  std::vector<const OpType*> types;   ///< of all nodes
  std::vector<TapePlan::Size> sizes;  ///< the same
  std::vector<std::uint32_t> ends;    ///< of several recordings in a row
  std::vector<Stage> stages;
  remat::Chain chain;
};

/// The places where a chain can be cut, 0 and the number of nodes among them. Tensors that live through many products
/// (skips, conditions, a recurrent net's results) do not count: stages share them. Exactly one other tensor crosses a
/// cut: one that several operators read (a residual stream), or, in long runs of products without such a place, any
/// one, where the fewest bytes cross. The end of each of several recordings is a cut, too.
std::vector<std::uint32_t> cut_points(const TapeGraph& graph);

/// Other places for nets that are no chains: about `stages` stages that make the same bytes, cut where few bytes cross.
/// The sum of 1 + (bytes made / even share)^2 over stages and of 3 bytes / even share over cuts is the least.
std::vector<std::uint32_t> even_cuts(const TapeGraph& graph, std::size_t stages);

/// How many ways a chain's stages may have.
struct StageLimits {
  std::size_t options = 8;  ///< of one stage
  std::size_t more = 4;     ///< for every further stage that an option spans
  /// Stages that one option may span; 0: as many as planning a chain of its length has time for.
  std::size_t span = 0;
};

/// The chain whose stages end at `cuts`. Each stage also has options that span the next ones, which keep none of the
/// tensors that cross between them: a long segment can recompute these at little cost, and holds more while backward
/// visits it. With `variants` it also has the variants of its own options, and of those of several stages that keep
/// most or least.
StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, const StageLimits& limits = {},
                        const SpillVariants* variants = nullptr);

/// Translates a chain plan into a tape plan.
TapePlan make_tape_plan(const StagedGraph& staged, const remat::ScheduleTree& plan);

/// A recording as one segment: each node runs again at most once, right before the first backward that needs it.
struct WholePlan {
  std::vector<Fate> fates;  ///< of all nodes
  remat::Time cost = 0;     ///< of running nodes again, in nanoseconds
};

/// At most `limit` of them that trade time for peak, by rising cost, without regard to stages
/// (memory/remat/peak_options.h): they are missing in chains of stages where many tensors cross.
std::vector<WholePlan> whole_plans(const TapeGraph& graph, const std::vector<NodeTimes>& times, std::size_t limit);

TapePlan make_tape_plan(const StagedGraph& staged, const WholePlan& plan);

/// A recording as a graph for the solvers, times in nanoseconds.
remat::Graph whole_graph(const TapeGraph& graph, const std::vector<NodeTimes>& times);

}  // namespace thimble::nn
