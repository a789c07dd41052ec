#pragma once
// Several ranks that make a step together, as a step sees them: dist/ implements this on its communicators.
//
// A step of N ranks with M micro-batches each has the bits of one rank with N M micro-batches. Rank r computes those
// with the numbers i N + r, and every sum over micro-batches (of gradients, losses, weights) is made in the order of
// these numbers, wherever it is made.

#include <cstdint>
#include <memory>
#include <span>

#include <thimble/autograd/leaf_set.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/optim/optimizer.h>

namespace thimble::optim {

struct MicroBatch;

/// What a step asks of its ranks, in this order; each call is made on every rank.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// The leaves that the tape trains. The optimizer may own parts of them.
  virtual const LeafSet& leaves() const noexcept = 0;
  /// Throws where the optimizer is not one of what these ranks share out (ValueError, AutogradError), or a gradient is
  /// there already (PlanError).
  virtual void begin_step(const Optimizer& optimizer, std::int64_t micro_batches) = 0;
  /// The micro-batches of all ranks in their order, from those of this rank; valid until the next call.
  virtual std::span<const MicroBatch> all_parts(std::span<const MicroBatch> own) = 0;
  /// A leaf's gradient of one micro-batch is complete: it goes to the ranks that sum it.
  virtual void take_gradient(const std::shared_ptr<Leaf>& leaf) = 0;
  /// Backward of this rank's next micro-batch is over: through a chunk of a pipeline's stage (optim/pipeline.h), or
  /// through the whole model, which is chunk 0.
  virtual void end_micro_batch(std::size_t chunk) = 0;
  /// After the last one: the optimizer's parameters have their gradients.
  virtual void complete_gradients() = 0;
  /// The sum over all ranks' micro-batches; `own` are this rank's, one element each.
  virtual Tensor sum_losses(std::span<const Tensor> own) = 0;
  /// The sums of squares of whole gradients, as gradient_square_sums has them on one rank.
  virtual Tensor gradient_square_sums(const Optimizer& optimizer) = 0;
  /// After the update: every rank has the parameters that others have updated.
  virtual void share_parameters() = 0;
  /// Applies what all forwards have found (StateUpdate), on every rank the same.
  virtual void share_state(Transaction& transaction) = 0;
  /// The gradients go; also after a step that failed.
  virtual void drop_gradients() noexcept = 0;
};

}  // namespace thimble::optim
