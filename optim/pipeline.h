#pragma once
// A step's interface to its pipeline stage; dist/pipeline/ implements it.
//
// A stage has a range of a model's layers, or several, its chunks. Micro-batches pass each forwards and backwards in
// the stage's order, with several in flight, each on a separate tape; backward passes of a chunk follow the order of
// their numbers, so that gradients are summed as on one rank.

#include <cstdint>
#include <memory>
#include <span>

#include <thimble/core/tensor/tensor.h>

namespace thimble::optim {

/// A micro-batch's pass through a chunk of a stage, forwards or backwards.
struct StagePass {
  bool is_forward = true;
  std::int64_t micro_batch = 0;
  std::size_t chunk = 0;
  bool makes_loss = true;  ///< the chunk is the model's last one; else its result goes to another stage
};

/// The calls of a step to its stage.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  /// Throws PlanError if a gradient exists already.
  virtual void begin_step() = 0;
  /// Passes in the order of the step: each micro-batch of this rank once forwards and once backwards per chunk.
  virtual std::span<const StagePass> passes() const noexcept = 0;
  /// Makes `pass` the current one.
  virtual void begin_pass(const StagePass& pass) = 0;
  /// Sends the current forward's result to the next chunk. Not for the model's last one.
  virtual void send_result(const Tensor& result) = 0;
  /// The initial gradient of the current backward, from the next chunk. Not for the model's last one.
  virtual Tensor receive_gradient() = 0;
  /// Takes a leaf's complete gradient of the current backward; returns true if it goes to another stage instead of this
  /// stage's optimizer.
  virtual bool take_gradient(const std::shared_ptr<tape::Leaf>& leaf) = 0;
  /// After the last pass: waits until all sent messages have arrived.
  virtual void end_passes() = 0;
  /// Once gradients are summed over all micro-batches: adds the two stages' gradients of a shared parameter.
  virtual void complete_gradients() = 0;
  /// Returns the last stage's loss on every stage.
  virtual Tensor share_loss(const Tensor& loss) = 0;
  /// The sum of all stages' sums of squares, one element, added in the order of the model's parameters.
  virtual Tensor sum_squares(const Tensor& own) = 0;
  /// After the update: copies shared parameters from the stage that updates them.
  virtual void share_parameters() = 0;
  /// Drops messages in flight; also after a failed step.
  virtual void drop() noexcept = 0;
};

}  // namespace thimble::optim
