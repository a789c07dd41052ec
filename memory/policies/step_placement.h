#pragma once
// From a trace to a placement: the requests of a training step in order, and the offsets of its blocks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <thimble/memory/placement/placement.h>
#include <thimble/memory/policies/trace.h>

namespace thimble {

/// The events of one step in order, and the offsets of its blocks.
struct StepPlacement {
  static constexpr std::uint32_t not_placed = ~std::uint32_t{0};

  struct Event {
    std::size_t bytes = 0;                    ///< of an allocation, as requested; 0 for a free
    std::uint32_t alignment = 0;              ///< of an allocation
    std::uint32_t block = not_placed;         ///< index into `buffers`
    Category category = Category::temporary;  ///< of an allocation, as requested
    PathId path = 0;
    friend bool operator==(const Event&, const Event&) = default;
  };
  std::vector<Event> events;
  std::vector<memory::Buffer> buffers;  ///< the placed blocks; lifetimes are indices into `events`
  memory::Placement placement;          ///< of `buffers`
};

/// Places the blocks that are both allocated and freed in a step with these events, a section of a trace. Relabels are
/// left out. Throws ValueError for inconsistent events (a block allocated or freed twice), and as `place` does. If
/// `like` is given and places the same blocks in the same order of allocations and frees, its placement is reused
/// without a search.
StepPlacement make_step_placement(std::span<const memory::Trace::Event> events,
                                  const memory::PlacementOptions& options = {}, const StepPlacement* like = nullptr);

}  // namespace thimble
