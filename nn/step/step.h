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

/// Whether each parameter is updated, and its gradient freed, as soon as backward is done with it. Only the gradients
/// that are alive at one time then need bytes.
enum class FusedUpdate : std::uint8_t {
  off,
  /// Only while a placed step is replayed (memory/policies/placed.h), whose memory is taken before it begins; on a dry
  /// device always. A step that has left its plan before the first update makes all updates at its end.
  secured,
  /// Always. Out of memory after the first update throws PartialUpdateError.
  unsecured
};

/// Replaces the scaler in a captured step (nn/step/captured_step.h), where the host cannot read values.
class StepJudge {
 public:
  virtual ~StepJudge() = default;
  /// Decides about the step, between backward and the update. `loss` is what training_step returns, `square_sums` are
  /// those of the gradients (optim/clip.h); undefined where there is none.
  virtual optim::GradScaler::Verdict judge(const Tensor& loss, const Tensor& square_sums) = 0;
};

struct StepOptions {
  double clip_norm = 0;            ///< > 0: gradients are clipped by their global norm; 0: they are not
  std::int64_t micro_batches = 1;  ///< gradient accumulation
  /// Samples per micro-batch; needed for several of equal size. The step cannot see samples: your own loop with unequal
  /// micro-batches sets `parts`. nn::Trainer counts them itself.
  std::int64_t micro_samples = 0;
  /// One for each micro-batch, if they differ in samples or in targets that count: set for the next step. No bytes
  /// depend on it.
  std::vector<optim::MicroBatch> parts = {};
  /// Called between backward and the update, before clipping, with the parameters whose gradients are complete; it may
  /// write to the gradients (clip them by value, add noise). On several ranks they are this rank's shards.
  std::function<void(const std::vector<optim::Named>& parameters)> on_gradients = nullptr;
  optim::RecordingOptions recording = {};
  FusedUpdate fuses_optimizer = FusedUpdate::off;
  /// Where gradients wait between backward and the update of their parameter (optim/offload_gradients.h); null: here.
  std::shared_ptr<Tier> gradient_tier = nullptr;
  optim::GradScaler* scaler = nullptr;  ///< scales the loss, and lives as long as the steps; null: it is not scaled
  /// The ranks of the step (dist/data_parallel.h), each with its own micro-batches; null: only this one.
  optim::Ranks* ranks = nullptr;
  /// The pipeline stage of this model (optim/pipeline.h), with the `ranks` that have it; null: it is whole.
  optim::Pipeline* stage = nullptr;
  StepJudge* judge = nullptr;  ///< decides in place of a scaler that reads gradients; null: the scaler decides
};

/// A step that is fused, or with parameters, gradients or optimizer state in a tier, failed after it had updated some
/// parameters: those, their optimizer state and the count of updates stay changed. Its cause is nested
/// (std::rethrow_if_nested) and in the text.
class PartialUpdateError : public Error {
 public:
  PartialUpdateError(const std::string& message, std::size_t updated, std::size_t parameters)
      : Error(message), updated_(updated), parameters_(parameters) {}
  /// Updated parameters, and the number of all.
  std::size_t updated() const noexcept { return updated_; }
  std::size_t parameters() const noexcept { return parameters_; }

 private:
  std::size_t updated_, parameters_;
};

/// Forward and backward of every micro-batch (`loss_of(i)` gives its mean loss; optim/accumulate.h), clipping, one
/// update, gradients freed. Only the optimizer's parameters are trained: every other leaf is a constant of the step,
/// for which nothing is computed, kept or accumulated, and `options.recording.leaves` is ignored. So several optimizers
/// can take turns over one net; parameters of none are frozen. A parameter that the loss does not depend on stays
/// unchanged; a loss that depends on none of them throws AutogradError. Other changes of the forward (batch-norm
/// statistics, the generator's step) are committed at the end: a step that throws leaves parameters, gradients,
/// optimizer, statistics and generator as they were, bit by bit, and can be repeated. So are buffers and parameters of
/// modules that `loss_of` writes in place (copy_into, fill, WritePin; their bytes count twice until the step ends); the
/// caller restores tensors that no module lists. Gradients from before the step take part, as in any backward. Returns
/// the mean loss, one element, not read. Throws ValueError for options out of range, or a scaler and an optimizer that
/// takes no gradient factor, PlanError if a placed arena is behind the parameters' resource and none of its steps has
/// begun (memory/policies/placed.h), AutogradError as Optimizer::check_members does, what optim::accumulate_gradients
/// throws for an invalid loss, and what `loss_of` throws.
///
/// With a `scaler` gradients are those of the scaled loss, and the optimizer divides them as it reads them; clipping
/// takes part in that factor and does not write to them. Under a dynamic scale a step whose gradients are not all
/// finite is skipped: parameters, optimizer state, its count and batch-norm statistics stay as they were, bit by bit;
/// the generator advances by a step, as the batch is used up, the scale falls, and gradients are freed. A step that
/// throws leaves the scaler as it was. Plans are for a step that is not skipped, which needs more.
///
/// `fuses_optimizer`, `gradient_tier` and `ranks` direct gradients: at most one of them, or PlanError is thrown before
/// anything runs, as for options that the sink does not support (nn/step/gradient_sink.h).
///
/// With `fuses_optimizer` the updates are made during backward, each after the last use of its parameter, re-runs of
/// segments included: the same bits. Optimizer state exists since the optimizer was made, and an update allocates
/// nothing. Throws PlanError for earlier gradients, which could not be restored, and for `secured` without a replayed
/// step; PartialUpdateError as above.
///
/// With `gradient_tier` every gradient is sent there when it is complete, and comes back for its update: the same bits,
/// clipped or not. Throws PlanError for earlier gradients; FileError with nothing changed before the first update,
/// PartialUpdateError after it.
///
/// With `ranks` every rank calls it with its own micro-batches, and all get the bits of one rank that has all of them
/// (optim/ranks.h). Throws PlanError with a judge, and for earlier gradients. A rank that throws leaves the others
/// waiting: the code that runs the ranks ends them (dist/).
///
/// With a `stage` every stage calls it with the same micro-batches, and all get the bits of one rank that has the whole
/// model. Norms and losses are those of all stages.
///
/// Parameters may be in a store (core/tensor/parameter_store.h), with each of these: the same bits. They are away at
/// the start and at the end of a step, so steps need the same bytes. Throws what the store throws: with nothing changed
/// before the first update, PartialUpdateError after it.
Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options = {});

}  // namespace thimble::nn
