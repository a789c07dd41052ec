#pragma once
// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): a block keeps nothing but its inputs; backward runs it
// again. Loss, gradients and side effects are bitwise those of the plain run.

#include <thimble/autograd/tape.h>

namespace thimble {

/// Nodes recorded while this lives belong to one segment that is dropped and recomputed.
class SegmentScope {
 public:
  SegmentScope() : tape_(context().tape) {
    if (tape_) tape_->begin_segment();
  }
  ~SegmentScope() {
    if (tape_) tape_->end_segment();
  }
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

 private:
  Tape* tape_;
};

/// block(inputs...), keeping only the inputs (and parameters) for backward. A segment inside of a segment joins it.
/// Outside of a recording it is a plain call.
template <class F, class... In>
auto checkpoint(F&& block, const In&... inputs) {
  const SegmentScope segment;
  return block(inputs...);
}

}  // namespace thimble
