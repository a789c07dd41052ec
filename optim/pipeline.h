#pragma once
// The stage of a pipeline that a step runs on, as the step sees it: dist/pipeline/ implements this.
//
// A stage has a stretch of a model's layers, or several, its chunks. Micro-batches pass each forwards and backwards in
// an order of the stage's own, in which several are under way at a time, each on a tape of its own; backwards they come
// through a chunk in the order of their numbers, so that gradients are summed as on one rank.

#include <cstdint>
#include <memory>
#include <span>

#include <thimble/core/tensor/tensor.h>

namespace thimble::optim {

/// A micro-batch through a chunk of a stage, one way.
struct StagePass {
  bool is_forward = true;
  std::int64_t micro_batch = 0;
  std::size_t chunk = 0;
  bool makes_loss = true;  ///< the chunk is the model's last one; else its result goes to another stage
};

/// What a step asks of the stage that it runs on.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  /// Throws PlanError where a gradient is there already.
  virtual void begin_step() = 0;
  /// In the order of the step, each micro-batch of this rank once each way through each chunk.
  virtual std::span<const StagePass> passes() const noexcept = 0;
  /// Before each of them, which is then under way.
  virtual void begin_pass(const StagePass& pass) = 0;
  /// What the forward under way gave goes to the next chunk. Not of the model's last one.
  virtual void send_result(const Tensor& result) = 0;
  /// The gradient of what the backward under way begins with, from the next chunk. Not of the model's last one.
  virtual Tensor receive_gradient() = 0;
  /// A leaf's gradient of the backward under way is complete: whether it goes to another stage, and not to the
  /// optimizer here.
  virtual bool take_gradient(const std::shared_ptr<Leaf>& leaf) = 0;
  /// After the last pass: all that was sent has come.
  virtual void end_passes() = 0;
  /// When gradients here are sums over all micro-batches: those of a parameter that two stages have become one.
  virtual void complete_gradients() = 0;
  /// The loss of a step, on every stage, from the last one, which alone gives it.
  virtual Tensor share_loss(const Tensor& loss) = 0;
  /// The sum of all stages' sums of squares, one element, added in the order of the model's parameters.
  virtual Tensor sum_squares(const Tensor& own) = 0;
  /// After the update: what another stage has, too, is what the one that updates it has.
  virtual void share_parameters() = 0;
  /// What is under way goes; also after a step that failed.
  virtual void drop() noexcept = 0;
};

}  // namespace thimble::optim
