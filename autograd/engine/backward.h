#pragma once
// The context in which backward runs operators.

#include <cstdint>
#include <memory>

#include <thimble/autograd/engine/recompute.h>
#include <thimble/core/tensor/context.h>

namespace thimble::tape_detail {

/// Suspends recording and sets is_recomputing for a scope, and restores the path at its end.
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

// ---- Backward: walks the nodes once, from the end. Gradients flow from results to operands, and each node frees the
// tensors that it consumes.
//
// Invariants
// - When the walk is at node n, the gradient of a value made by node n or an earlier one is the sum of the later nodes'
//   contributions. So it is complete when the walk reaches its producer, which consumes it.
// - A node's operator holds the last references to its saved tensors and its gradient, so it may write results in their
//   buffers.
// - A leaf's hook runs when the first node that has the leaf as an operand is done.
// - A leaf that already has a gradient (another micro-batch's) first sums the contributions of its uses, then adds that
//   sum. So micro-batches add up as ranks do, each to a separate sum (optim/ranks.h).
//
// Example: y = mul(a, b), z = exp(y), with leaves a and b (recorded.h)
//
//   node 1  exp   takes z's gradient, reads z; makes y's gradient, and frees z
//   node 0  mul   takes y's gradient, reads a and b; adds to the gradients of the leaves a and b, whose hooks then run
//
// A node of a segment first asks Recompute for the tensors that its backward reads.

class Backward {
 public:
  Backward(Recorded& recorded, Recompute& recompute) : recorded_(recorded), recompute_(recompute) {}

  /// Tape::backward for a recorded loss, with checked arguments. The caller clears the tape even when this throws.
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

/// Adds to a leaf's gradient, unless the leaf was frozen after it was recorded.
void accumulate_leaf(const std::shared_ptr<tape::Leaf>& leaf, Tensor gradient);

}  // namespace thimble::tape_detail
