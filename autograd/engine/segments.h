#pragma once
// Segments: which nodes of a recording are dropped, and which tensors must be kept to recompute them.
//
// A segment is a range of nodes, named by the program (autograd/checkpoint.h) or by a plan (autograd/plan.h, which
// defines closed, open, fate and source). This part works while the tape records, recompute.h in backward.
//
// Invariants
// - Segments nest. While the tape records, the outermost segment around a node is *closed*: it holds only the tensors
//   that it keeps, and its dropped operators do not fill their Saved.
// - While a segment is recorded it holds every source that a node may reread. When it ends it is *settled*: a search
//   finds the sources that recomputing it reads, and releases the others.
// - Segments are numbered in order of their first node; a parent comes before its children.
//
// Example: checkpoint([](x) { return exp(relu(mul(x, w))); }, x) drops nodes 0 (mul), 1 (relu) and 2 (exp). From node 0
// until backward reaches node 2, the segment holds its sources x and w, and no result. With a policy that keeps mul
// (Fate::keep), node 0 holds x and w for its backward, and mul's result becomes the segment's only source:
// recomputation starts at relu.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <thimble/autograd/engine/recorded.h>

namespace thimble::tape_detail {

/// A value that recomputing a segment reads, and one of its readers, for messages.
struct Source {
  std::uint32_t reader;
  std::uint32_t value;
};

struct Segment {
  std::uint32_t first_node, end_node;
  std::int32_t parent;
  FatePolicy policy;
  bool is_open = false;  // being recomputed
  bool is_settled = false;
  std::vector<Source> sources = {};  // held values
  std::vector<Source> needed = {};   // all values that recomputing it reads once the segments around it are open
};

/// How a node is recomputed: not at all, only its result, or also its saved tensors.
enum class Mode : std::uint8_t { skip, output, full };

/// The nodes and values for recomputing a segment.
struct Needed {
  std::uint32_t first = 0;              // the segment's first node, at index 0 of the lists
  std::vector<Mode> modes;              // per node
  std::vector<std::uint8_t> is_output;  // per node, whether its result is read
  std::vector<Source> sources;
};

class Segments {
 public:
  explicit Segments(Recorded& recorded) : recorded_(recorded) {}

  /// Makes later recordings follow a valid plan; null restores the program's segments.
  void follow(std::shared_ptr<const TapePlan> plan);
  /// Prepares the next recording.
  void clear() noexcept;

  void begin(FatePolicy policy);
  void end() noexcept;

  /// Whether the program is inside a segment.
  bool is_recording() const noexcept { return innermost_ != none_segment; }
  /// Whether recomputing may need nodes without gradients.
  bool may_recompute() const noexcept { return plan_ || innermost_ != none_segment; }
  /// Whether the next node fills its Saved.
  bool keeps_next(const OpType& type) const;
  /// Sets segment, fate and is_dropped of the next node.
  void place(Node& node) const;
  /// Holds the saved tensors of a node just recorded, and the sources that it reads, as its segment requires.
  void add(std::uint32_t node, std::span<const Tensor> inputs, std::span<Tensor> kept, const Tensor& output);

  // Throw PlanError when the recording leaves the plan; without a plan they never throw.
  void require_planned(const OpType& next) const;
  void require_planned_size(const OpType& next, std::span<const Tensor> inputs, const Tensor& output) const;
  void require_planned_end() const;

  // For Recompute.

  Segment& at(std::int32_t index) { return segments_[static_cast<std::size_t>(index)]; }
  const Segment& at(std::int32_t index) const { return segments_[static_cast<std::size_t>(index)]; }
  /// The child of `around` that is `inner` or contains it; none_segment if `inner` is `around`.
  std::int32_t child_towards(std::int32_t around, std::int32_t inner) const;
  /// Number of segments around it.
  std::uint32_t depth(std::int32_t index) const;
  /// Holds a node's saved tensors: operands and the result by reference, others as new values. In the segment `closed`,
  /// only the ones that it keeps.
  void keep(const Node& node, std::int32_t closed, std::span<const Tensor> inputs, std::span<Tensor> kept,
            const Tensor& output);
  /// Settles an ended segment and its inner ones: finds the values that recomputing each needs, and releases the rest.
  void settle(std::int32_t top);
  /// Finds the nodes of a segment before `end` that run when it is recomputed, with its inner segments closed again,
  /// and marks the values that they read. With `is_ahead` the segment is closed and all around it are open, else it is
  /// about to be opened. Throws AutogradError if a tensor from before it was not kept.
  void search(std::int32_t index, std::uint32_t end, bool is_ahead, Needed& needed);
  void release_sources(std::int32_t index) noexcept;

 private:
  std::int32_t segment_of_next() const;
  Fate fate_of_next(const OpType& type) const;
  std::int32_t outermost(std::int32_t index) const;
  bool is_kept_for(std::uint32_t value, std::int32_t closed) const;
  void hold_sources(std::uint32_t node, std::int32_t closed, std::span<const Tensor> inputs);

  Recorded& recorded_;
  std::shared_ptr<const TapePlan> plan_;
  std::vector<std::int32_t> planned_;  // innermost segment of each node of the plan
  std::vector<Segment> segments_;
  std::int32_t innermost_ = none_segment;  // the program's current segment
  Needed ahead_;                           // for settle()
};

}  // namespace thimble::tape_detail
