#pragma once
// One training step as a transaction.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// Whether each parameter is updated, and its gradient freed, as soon as backward has finished with it. Only gradients
/// that are alive at the same time then need bytes.
enum class FusedUpdate : std::uint8_t {
  off,
  /// Only while a placed step is replayed (memory/policies/placed.h), because its memory was taken before; always on a
  /// dry device. A step that left its plan before the first update makes all updates at its end.
  secured,
  /// Always. Out of memory after the first update throws PartialUpdateError.
  unsecured
};

/// Decides instead of the scaler in a captured step (nn/step/captured_step.h), where the host cannot read values.
class StepJudge {
 public:
  virtual ~StepJudge() = default;
  /// Called between backward and the update with training_step's loss and the gradients' sums of squares
  /// (optim/clip.h), undefined if no parameter has a gradient.
  virtual optim::GradScaler::Verdict judge(const Tensor& loss, const Tensor& square_sums) = 0;
};

struct StepOptions {
  double clip_norm = 0;            ///< limit of the gradients' global norm; 0 does not clip
  std::int64_t micro_batches = 1;  ///< gradient accumulation
  /// Samples per micro-batch, for several micro-batches of equal size. The step cannot see samples: a loop with unequal
  /// micro-batches sets `parts`. nn::Trainer counts them itself.
  std::int64_t micro_samples = 0;
  /// One per micro-batch, if they differ in samples or in targets that count; set them before each step. No bytes
  /// depend on them.
  std::vector<optim::MicroBatch> parts = {};
  /// Called between backward and the update, before clipping, with the parameters whose gradients are complete; on
  /// several ranks this rank's shards. It may write to the gradients (clip them by value, add noise).
  std::function<void(const std::vector<optim::Named>& parameters)> on_gradients = nullptr;
  optim::RecordingOptions recording = {};
  FusedUpdate fuses_optimizer = FusedUpdate::off;
  /// Where gradients wait for the update of their parameter (optim/offload_gradients.h); null leaves them on the
  /// device.
  std::shared_ptr<memory::Tier> gradient_tier = nullptr;
  optim::GradScaler* scaler = nullptr;  ///< scales the loss; must outlive the steps; may be null
  /// The ranks of the step (dist/data_parallel.h), each with different micro-batches; null for one rank.
  optim::Ranks* ranks = nullptr;
  /// The pipeline stage of this model (optim/pipeline.h), whose ranks are `ranks`; null for a whole model.
  optim::Pipeline* stage = nullptr;
  StepJudge* judge = nullptr;  ///< decides instead of a scaler that reads gradients; may be null
};

/// A step that is fused, or has parameters, gradients or optimizer state in a tier, failed after updating some
/// parameters. They, their optimizer state and the count of updates stay changed. The cause is nested
/// (std::rethrow_if_nested) and in the message.
class PartialUpdateError : public Error {
 public:
  PartialUpdateError(const std::string& message, std::size_t updated, std::size_t parameters)
      : Error(message), updated_(updated), parameters_(parameters) {}
  /// Number of updated and of all parameters.
  std::size_t updated() const noexcept { return updated_; }
  std::size_t parameters() const noexcept { return parameters_; }

 private:
  std::size_t updated_, parameters_;
};

/// Runs forward and backward of every micro-batch (`loss_of(i)` returns its mean loss; optim/accumulate.h), clips,
/// updates once and frees gradients. It trains only the optimizer's parameters: every other leaf is a constant of the
/// step, for which nothing is computed, kept or accumulated, and `options.recording.leaves` is ignored. So several
/// optimizers can train one net in alternation; parameters that none has are frozen. A parameter that the loss does not
/// depend on stays unchanged; a loss that depends on no parameter throws AutogradError. Other changes of the forward
/// (batch-norm statistics, the generator's step) are committed at the end: a step that throws leaves parameters,
/// gradients, optimizer, statistics and generator as they were, bit by bit, and can be repeated. It also restores
/// buffers and parameters of modules that `loss_of` writes in place (copy_into, fill, WritePin; their bytes count twice
/// until the step ends); the caller restores tensors that no module lists. Gradients from before the step are added to,
/// as in any backward. Returns the mean loss, one element, without reading it. Throws ValueError for options out of
/// range, and for a scaler with an optimizer that takes no gradient factor; PlanError if a placed arena is behind the
/// parameters' resource and none of its steps has begun (memory/policies/placed.h); AutogradError as
/// Optimizer::check_members does; errors of optim::accumulate_gradients for an invalid loss; any error of `loss_of`.
///
/// With a `scaler`, backward computes gradients of the scaled loss, and the optimizer divides them as it reads them.
/// Clipping changes that factor instead of the gradients. Under a dynamic scale a step whose gradients are not all
/// finite is skipped: parameters, optimizer state, its count and batch-norm statistics stay as they were, bit by bit;
/// the generator advances by a step, as the batch is used up, the scale falls, and gradients are freed. A step that
/// throws leaves the scaler as it was. Plans are for a step that is not skipped, which needs more.
///
/// `fuses_optimizer`, `gradient_tier` and `ranks` select the sink of gradients (nn/step/gradient_sink.h). Two of them,
/// or options that the sink does not support, throw PlanError before anything runs.
///
/// With `fuses_optimizer` backward updates each parameter after its last use, recomputed segments included: the same
/// bits. Optimizer state exists since the optimizer was made, and an update allocates nothing. Throws PlanError for
/// earlier gradients, which could not be restored, and for `secured` without a replayed step; PartialUpdateError.
///
/// With `gradient_tier` every gradient moves there when it is complete, and returns for its update: the same bits,
/// clipped or not. Throws PlanError for earlier gradients; FileError with nothing changed before the first update,
/// PartialUpdateError after it.
///
/// With `ranks` every rank calls it with different micro-batches, and all get the bits of one rank that has all of them
/// (optim/ranks.h). Throws PlanError with a judge, and for earlier gradients. A rank that throws leaves the others
/// waiting: the code that runs the ranks ends them (dist/).
///
/// With a `stage` every stage calls it with the same micro-batches, and all get the bits of one rank with the whole
/// model. Norms and losses cover all stages.
///
/// With any of these, parameters may be in a store (core/tensor/parameter_store.h): the same bits. They are away at the
/// start and end of a step, so that all steps need the same bytes. The store's errors change nothing before the first
/// update; after it they are a PartialUpdateError.
Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options = {});

}  // namespace thimble::nn
