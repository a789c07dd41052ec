#pragma once
// The context that backward runs operators in.

#include <cstdint>
#include <memory>

#include <thimble/autograd/engine/recompute.h>
#include <thimble/core/tensor/context.h>

namespace thimble::tape_detail {

/// Suspends recording, and restores path and flag at its end.
class BackwardScope {
 public:
  explicit BackwardScope(bool is_recomputing) : before_(context()) {
    context().tape = nullptr;
    context().is_recomputing = is_recomputing;
  }
  ~BackwardScope() {
    context().tape = before_.tape;
    context().path = before_.path;
    context().is_recomputing = before_.is_recomputing;
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  ThreadContext before_;
};

// ---- Backward: walks the nodes once, from the end. Gradients flow from results to operands, and a node's inputs are
// freed as it consumes them.
//
// Invariants
// - When the walk is at node n, the gradient of every value made by node n or an earlier one is the sum of the later
//   nodes' contributions. So it is complete when its maker's turn comes, and is used up there.
// - A node's operator holds the last references to its saved tensors and its gradient: it may write results in their
//   buffers.
// - A leaf's hook runs when the first node that has the leaf as an operand is done.
// - A leaf that already has a gradient (another micro-batch's) first sums the contributions of its uses, then adds that
//   sum. So micro-batches add up as ranks do, each with its own sum (optim/ranks.h).
//
// Example: y = mul(a, b), z = exp(y), with leaves a and b (recorded.h)
//
//   node 1  exp   gradient of z, reads z; gives y's gradient, and frees z
//   node 0  mul   gradient of y, reads a and b; adds to the gradients of the leaves a and b, whose hooks then run
//
// A node of a segment first asks Recompute for the tensors that its backward reads.

class Backward {
 public:
  Backward(Recorded& recorded, Recompute& recompute) : recorded_(recorded), recompute_(recompute) {}

  /// Tape::backward for a recorded loss, with checked arguments. The caller clears the tape, also when this throws.
  void run(const Tensor& loss, Tensor seed, const LeafHook* on_gradient);

 private:
  void find_leaf_uses();
  bool sums_apart(std::uint32_t leaf) const;
  void complete_leaf(std::uint32_t leaf, std::uint32_t node, const LeafHook* on_gradient);
  void run_node(std::uint32_t index);
  void release_saved(const Node& node) noexcept;
  void accumulate(const Node& node, int operand, Tensor gradient);

  Recorded& recorded_;
  Recompute& recompute_;
};

/// Adds to a leaf's gradient; no effect if the leaf was frozen since it was recorded.
void accumulate_leaf(const std::shared_ptr<Leaf>& leaf, Tensor gradient);

}  // namespace thimble::tape_detail
