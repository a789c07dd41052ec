#pragma once
// A simulated step as events and buffers.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <thimble/memory/remat/graph.h>

namespace thimble::remat {

/// A step with a selection, event by event, and its buffers. At each event the live buffers add up to the simulated
/// bytes; the largest sum is GraphCost::peak_bytes.
struct GraphTimeline {
  struct Event {
    enum class Kind : std::uint8_t { forward, recompute, backward };
    Kind kind;
    std::uint32_t op;
    std::uint32_t segment;
    std::uint32_t reader;  ///< the operator whose backward this is, or needs this re-run
  };
  /// More than 0 bytes, alive in events [begin, end). A gradient that overwrites another buffer shares it.
  struct Buffer {
    enum class Kind : std::uint8_t { tensor, gradient, temporary };
    Kind kind;
    std::uint32_t index;  ///< of the tensor, or of the temporary's operator
    Bytes bytes;
    std::size_t begin, end;
  };
  std::vector<Event> events;
  std::vector<Buffer> buffers;  ///< by rising `begin`
};

/// Throws as simulate() does.
GraphTimeline timeline(const Graph& graph, const Selection& selection);

/// Simulates one valid graph many times, faster than simulate() does. The graph must outlive the simulator.
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
  /// The cost of the selection that was closed last. The simulation stops once the peak reaches `bound`; then only
  /// peak_bytes >= bound holds.
  GraphCost run_closed(Bytes bound = std::numeric_limits<Bytes>::max());
  struct Gap {
    Drop drop;
    std::uint32_t until;  ///< step of the next use
  };
  /// The drops that would change a step with a selection: after each use of a tensor whose next use comes before it is
  /// made again. A gap does not reach from forward into backward.
  std::vector<Gap> gaps(const Selection& selection);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thimble::remat
