#pragma once
// A step's interface to the ranks that share it; dist/ implements it with communicators.
//
// A step of N ranks with M micro-batches each has the bits of one rank with N M micro-batches. Rank r computes
// micro-batches i N + r, and every sum over micro-batches (of gradients, losses, weights) is in the order of these
// numbers, whichever rank computes it.

#include <cstdint>
#include <memory>
#include <span>

#include <thimble/autograd/leaf_set.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct MicroBatch;

/// A step makes these calls on every rank, in this order.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// The leaves that the tape trains. The optimizer may own shards of them.
  virtual const LeafSet& leaves() const noexcept = 0;
  /// Throws ValueError or AutogradError if the optimizer does not own these ranks' parameters, PlanError if a gradient
  /// exists already.
  virtual void begin_step(const Optimizer& optimizer, std::int64_t micro_batches) = 0;
  /// The micro-batches of all ranks in order, from this rank's; valid until the next call.
  virtual std::span<const MicroBatch> all_parts(std::span<const MicroBatch> own) = 0;
  /// A leaf's gradient of one micro-batch is complete: sends it to the ranks that sum it.
  virtual void take_gradient(const std::shared_ptr<tape::Leaf>& leaf) = 0;
  /// Backward of this rank's next micro-batch has ended: through a chunk of a pipeline's stage (optim/pipeline.h), or
  /// through the whole model, which is chunk 0.
  virtual void end_micro_batch(std::size_t chunk) = 0;
  /// Call it after the last micro-batch: gives the optimizer's parameters their gradients.
  virtual void complete_gradients() = 0;
  /// The sum over all ranks' micro-batches; `own` are this rank's, one element each.
  virtual Tensor sum_losses(std::span<const Tensor> own) = 0;
  /// The sums of squares of whole gradients, as gradient_square_sums gives them on one rank.
  virtual Tensor gradient_square_sums(const Optimizer& optimizer) = 0;
  /// After the update: gives every rank the parameters that others updated.
  virtual void share_parameters() = 0;
  /// Applies all forwards' state changes (StateUpdate) identically on every rank.
  virtual void share_state(tape::Transaction& transaction) = 0;
  /// Drops the gradients; also after a failed step.
  virtual void drop_gradients() noexcept = 0;
};

}  // namespace thimble::optim
