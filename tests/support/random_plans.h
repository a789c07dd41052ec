#pragma once
// Plans of a tape with nested segments and fates drawn at random.

#include <algorithm>
#include <cstdint>
#include <random>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>

namespace random_plans {

using Random = std::mt19937_64;

inline std::size_t pick(Random& random, std::size_t count) { return static_cast<std::size_t>(random() % count); }

/// Segments of random lengths in [begin, end) of the nodes, up to four deep.
inline void add_segments(Random& random, thimble::TapePlan& plan, std::uint32_t begin, std::uint32_t end,
                         std::int32_t parent, int depth) {
  std::uint32_t at = begin;
  while (at < end) {
    at += static_cast<std::uint32_t>(pick(random, 3));
    const auto length = 1 + static_cast<std::uint32_t>(pick(random, end - begin));
    const std::uint32_t stop = std::min(end, at + length);
    if (at >= stop) return;
    plan.segments.push_back({at, stop, parent});
    if (depth < 3) {
      add_segments(random, plan, at, stop, static_cast<std::int32_t>(plan.segments.size() - 1), depth + 1);
    }
    at = stop;
  }
}

inline thimble::TapePlan random_plan(const thimble::TapeGraph& graph, Random& random) {
  thimble::TapePlan plan;
  for (const thimble::TapeGraph::Node& node : graph.nodes) {
    plan.types.push_back(node.type);
    plan.fates.push_back(static_cast<thimble::Fate>(pick(random, 4)));
  }
  add_segments(random, plan, 0, static_cast<std::uint32_t>(plan.types.size()), thimble::TapePlan::none, 0);
  return plan;
}

}  // namespace random_plans
