#pragma once
// A simulated step as events and buffers.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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

/// Simulations of one valid graph, which must outlive it: faster than one at a time.
class GraphSimulator {
 public:
  explicit GraphSimulator(const Graph& graph);
  ~GraphSimulator();
  GraphSimulator(const GraphSimulator&) = delete;
  GraphSimulator& operator=(const GraphSimulator&) = delete;

  /// Throw as simulate() does.
  GraphCost run(const Selection& selection);
  GraphTimeline timeline(const Selection& selection);
  /// As close_selection() does, with one flag per tensor.
  Selection close(const std::vector<bool>& wanted, std::vector<Drop> drops);
  /// The needs of the selection that was closed last. Where the peak reaches `bound` the simulation ends, and only
  /// that is told: peak_bytes is at least as large.
  GraphCost run_closed(Bytes bound = std::numeric_limits<Bytes>::max());
  /// A drop and the step of the next use.
  struct Gap {
    Drop drop;
    std::uint32_t until;
  };
  /// The drops that would change a step with a selection: after each use of a tensor that is used later without being
  /// made again in between, forward and backward apart.
  std::vector<Gap> gaps(const Selection& selection);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::remat
