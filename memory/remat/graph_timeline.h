#pragma once
// A simulated step as events and buffers.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <thimble/memory/remat/graph.h>

namespace thimble::remat {

/// A step with a selection, event by event, and the buffers that it needs. At each event the bytes of the buffers that
/// are there add up to the simulated ones; their largest sum is GraphCost::peak_bytes.
struct GraphTimeline {
  struct Event {
    enum class Kind : std::uint8_t { forward, recompute, backward };
    Kind kind;
    std::uint32_t op;
    std::uint32_t segment;
    std::uint32_t reader;  ///< whose backward it is, or is run for
  };
  /// Of more than 0 bytes, there from event `begin` to before event `end`. A gradient that is written over another
  /// buffer is in that one.
  struct Buffer {
    enum class Kind : std::uint8_t { tensor, gradient, temporary };
    Kind kind;
    std::uint32_t index;  ///< of the tensor, or of a temporary's operator
    Bytes bytes;
    std::size_t begin, end;
  };
  std::vector<Event> events;
  std::vector<Buffer> buffers;  ///< by rising `begin`
};

/// Throws as simulate() does.
GraphTimeline timeline(const Graph& graph, const Selection& selection);

/// close_selection() of a valid graph with its simulation. can_make: recomputable(graph).
std::pair<Selection, GraphCost> simulate_wanted(const Graph& graph, const std::vector<bool>& can_make,
                                                const std::vector<bool>& wanted, std::vector<Drop> drops);

/// The drops that would change a step with a selection: after each use of a tensor that is used later without being
/// made again in between, forward and backward apart.
std::vector<Drop> gaps(const Graph& graph, const Selection& selection);

}  // namespace thimble::remat
