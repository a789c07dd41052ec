#pragma once
// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): a block keeps its inputs and the inner tensors that a
// policy names; backward recomputes the rest. Loss, gradients and side effects equal the plain run bitwise. Segments
// nest (see autograd/plan.h).

#include <thimble/autograd/tape.h>

namespace thimble {

/// Nodes recorded during its life form one segment.
class SegmentScope {
 public:
  explicit SegmentScope(FatePolicy policy = drop_all) : tape_(context().tape) {
    if (tape_) tape_->begin_segment(policy);
  }
  ~SegmentScope() {
    if (tape_) tape_->end_segment();
  }
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

 private:
  Tape* tape_;
};

/// block(inputs...), keeping only the inputs and parameters for backward. Outside a recording, a plain call.
template <class F, class... In>
auto checkpoint(F&& block, const In&... inputs) {
  const SegmentScope segment;
  return block(inputs...);
}

/// checkpoint that also keeps the tensors that `policy` names: `checkpoint_with(keep_costly, block, x)`.
template <class F, class... In>
auto checkpoint_with(FatePolicy policy, F&& block, const In&... inputs) {
  const SegmentScope segment(policy);
  return block(inputs...);
}

}  // namespace thimble
