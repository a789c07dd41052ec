#pragma once
// A recording as a chain: cut where a single tensor crosses, each stage with several ways of keeping less.

#include <cstdint>
#include <memory>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/memory/remat/chain.h>
#include <thimble/memory/remat/schedule.h>
#include <thimble/nn/fit/cost.h>

namespace thimble::nn {

/// The chain of a recording and what its options mean for the nodes. Times are in nanoseconds.
struct StagedGraph {
  struct Stage {
    std::uint32_t first = 0, end = 0;      ///< nodes
    std::vector<std::vector<Fate>> fates;  ///< per option, of its nodes; option 0 keeps everything
  };
  std::vector<const OpType*> types;  ///< of all nodes
  std::vector<Stage> stages;
  remat::Chain chain;
};

/// The places where a chain can be cut, 0 and the number of nodes among them: where one tensor crosses that more than
/// one operator reads (a residual stream), or, in stretches of many products without such a place, where one tensor
/// crosses.
std::vector<std::uint32_t> cut_points(const TapeGraph& graph);

/// Ways of joining neighbouring stages, each a list of sizes. A long stage can drop what lies between its parts at
/// little cost, and holds more while backward visits it; early stages are visited when little else is held. `crossing`
/// has the bytes that cross the end of each stage: runs of equal ones (the layers of a ResNet) are joined as such. The
/// first way joins none.
std::vector<std::vector<std::size_t>> groupings(const std::vector<std::size_t>& crossing);

/// The chain whose stages end at `cuts`, with at most `options` ways each.
StagedGraph make_stages(const TapeGraph& graph, const std::vector<NodeTimes>& times,
                        const std::vector<std::uint32_t>& cuts, std::size_t options = 8);

/// The plan of the tape that a plan of the chain stands for.
TapePlan make_tape_plan(const StagedGraph& staged, const remat::Plan& plan);

}  // namespace thimble::nn
