#pragma once
// Divides a recording into a chain of stages, each with several options that keep less.

#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/graph.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/memory/remat/select.h>
#include <thimble/nn/fit/cost.h>
#include <thimble/nn/fit/spilling.h>

namespace thimble::nn {

/// The chain of a recording, and each option's fates of nodes. Times are in nanoseconds.
struct StagedGraph {
  struct Stage {
    std::uint32_t first = 0, end = 0;      ///< nodes
    std::vector<std::vector<Fate>> fates;  ///< per option, of the nodes that it spans; option 0 keeps everything
    std::vector<std::vector<TapePlan::Spill>> spills;  ///< per option
  };
  std::vector<const OpType*> types;   ///< of all nodes
  std::vector<TapePlan::Size> sizes;  ///< of all nodes
  std::vector<std::uint32_t> ends;    ///< of each of several consecutive recordings
  std::vector<Stage> stages;
  remat::Chain chain;
};

/// The places where a chain can be cut, from 0 to the number of nodes. Tensors that live through many products (skips,
/// conditions, a recurrent net's results) do not count: stages share them. Exactly one other tensor crosses a cut: one
/// that several operators read (a residual stream), or, in long runs of products without such a place, any tensor, at
/// the place where the fewest bytes cross. Each of several recordings also ends at a cut.
std::vector<std::uint32_t> cut_points(const TapeGraph& graph);

/// Cuts for nets that are no chains: about `stages` stages with similar bytes, cut where few bytes cross. Minimizes the
/// sum of 1 + (bytes made / mean)^2 over stages and of 3 * (bytes crossing / mean) over cuts; mean is bytes per stage.
std::vector<std::uint32_t> even_cuts(const TapeGraph& graph, std::size_t stages);

/// Limits the options of a chain's stages.
struct StageLimits {
  std::size_t options = 8;  ///< of one stage
  std::size_t more = 4;     ///< for each further stage that an option spans
  /// Stages that one option may span; 0 chooses by the chain's length, to limit planning time.
  std::size_t span = 0;
};

/// The chain whose stages end at `cuts`. Each stage also has options that span the next ones and keep none of the
/// tensors that cross between them: a long segment can recompute these at little cost, but holds more while backward
/// visits it. With `variants` each stage adds variants of its options, and of the multi-stage options that keep most
/// and least.
StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, const StageLimits& limits = {},
                        const SpillVariants* variants = nullptr);

/// Translates a chain plan into a tape plan.
TapePlan make_tape_plan(const StagedGraph& staged, const remat::ScheduleTree& plan);

/// A recording as one segment: each node is recomputed at most once, right before the first backward that needs it.
struct WholePlan {
  std::vector<Fate> fates;  ///< of all nodes
  remat::Time cost = 0;     ///< of recomputed nodes, in nanoseconds
};

/// At most `limit` plans that trade time for peak without regard to stages, by rising cost
/// (memory/remat/peak_options.h). Chains miss them if many tensors cross their stages.
std::vector<WholePlan> whole_plans(const TapeGraph& graph, const std::vector<NodeTimes>& times, std::size_t limit);

TapePlan make_tape_plan(const StagedGraph& staged, const WholePlan& plan);

/// The lower bound of a recording's plans, in nanoseconds. It counts the gradients that were observed.
remat::TimeBound time_bound(const TapeGraph& graph, const std::vector<NodeTimes>& times);

}  // namespace thimble::nn
