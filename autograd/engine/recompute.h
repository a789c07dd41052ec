#pragma once
// Recomputation in backward: runs dropped nodes again from the tensors that their segment kept (segments.h).
//
// Invariants
// - Backward *opens* a segment when it reaches its last node: a search decides which nodes are recomputed, and how.
//   Segments around it are opened first; inner ones stay closed until backward reaches them.
// - A node runs right before the first backward that needs its result, after the nodes that it needs, in the order of
//   the recording, and at most once per opening of its segment.
// - A recomputed tensor goes to its waiting readers (a node's Saved, or the sources of an inner segment) and to the
//   nodes that will reread it, and is freed after the last of them.
// - The bits equal the first run's. An operator's record holds everything that its random numbers depend on
//   (RandomSite: seed, step, site, first sample), so dropout draws the same mask, and no count advances.
//   context().is_recomputing keeps operators from updating statistics twice.
//
// Example: nodes 0 (mul), 1 (relu) and 2 (exp) of one segment that drops all. Backward reaches node 2:
//
//   provide(2)   opens the segment and recomputes all three: 2 is due, 2 needs 1, and 1 needs 0. Each fills its Saved;
//                node 0 reads the segment's sources x and w
//   provide(1)   nothing is due: node 1 has its saved tensors
//   provide(0)   nothing is due

#include <cstdint>
#include <vector>

#include <thimble/autograd/engine/segments.h>

namespace thimble::tape_detail {

class Recompute {
 public:
  Recompute(Recorded& recorded, Segments& segments) : recorded_(recorded), segments_(segments) {}

  /// Recomputes the tensors that the node's backward reads. Throws as the operators throw, and AutogradError when a
  /// tensor was overwritten.
  void provide(std::uint32_t node);
  /// Called after the node's backward: its result has no more readers.
  void pass(std::uint32_t node) noexcept;
  /// Releases a leaf, which no later node reads, from the closed segments around the node.
  void release_leaf(std::uint32_t leaf, std::uint32_t node) noexcept;

 private:
  struct Wait {
    std::uint32_t value, reader;
    std::uint32_t edge;    // index in Recorded::saved; none for a segment
    std::int32_t segment;  // inner segment with the value as a source; none_segment for a node
  };
  // An open segment: the nodes still to be recomputed.
  struct Open : Needed {
    std::vector<Wait> waits;         // in order of the value's producer
    std::vector<std::uint32_t> due;  // nodes to run now
    std::vector<bool> is_asked;      // per node, whether it has been due

    Mode& mode(std::uint32_t node) { return modes[node - first]; }
  };

  void open_segment(std::int32_t index);
  void begin(std::int32_t index, Open& open);
  void find_waits(std::int32_t index, Open& open);
  void give(const Wait& wait, const Tensor& t);
  void ask(std::uint32_t value, std::uint32_t reader, Open& open);
  void ask_node(std::uint32_t node, Open& open);
  void run_due(std::int32_t index, Open& open);
  void run(std::uint32_t index, std::int32_t around, Open& open);
  Tensor run_output(const Node& node, std::span<const Tensor> inputs);
  void hold_for_rereads(std::uint32_t value, const Tensor& t);
  void drop_rereads(std::uint32_t node) noexcept;

  Recorded& recorded_;
  Segments& segments_;
  std::uint32_t position_ = 0;  // backward's current node
  std::vector<Open> open_;      // the segments around it, by depth
};

}  // namespace thimble::tape_detail
