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
  /// Anywhere. Out of memory after the first update throws PartialUpdateError.
  unsecured
};

/// Replaces the scaler in a captured step (nn/step/captured_step.h), where the host cannot read values.
class StepJudge {
 public:
  virtual ~StepJudge() = default;
  /// What becomes of the step: between backward and the update. `loss` is what training_step returns, `square_sums` are
  /// those of the gradients (optim/clip.h); undefined where there is none.
  virtual optim::GradScaler::Verdict judge(const Tensor& loss, const Tensor& square_sums) = 0;
};

struct StepOptions {
  double clip_norm = 0;            ///< > 0: gradients are clipped by their global norm; 0: they are not
  std::int64_t micro_batches = 1;  ///< gradient accumulation
  /// Samples per micro-batch; needed when there are several, all of which have as many. The step sees no samples: a
  /// loop by hand whose micro-batches differ gives `parts`. nn::Trainer counts them itself.
  std::int64_t micro_samples = 0;
  /// One for each micro-batch, where they differ in samples or in what counts of them: set for the step that comes. No
  /// bytes depend on it.
  std::vector<optim::MicroBatch> parts = {};
  /// Called between backward and the update, before clipping, with the parameters whose gradients are complete, and
  /// may write to these (clip them by value, add noise to them). On several ranks they are this rank's shards.
  std::function<void(const std::vector<optim::Named>& parameters)> on_gradients = nullptr;
  optim::RecordingOptions recording = {};
  FusedUpdate fuses_optimizer = FusedUpdate::off;
  /// Where gradients wait between backward and the update of their parameter (optim/offload_gradients.h); null: here.
  std::shared_ptr<Tier> gradient_tier = nullptr;
  optim::GradScaler* scaler = nullptr;  ///< scales the loss, and lives as long as the steps; null: it is not scaled
  /// That make the step together (dist/data_parallel.h), each with its own micro-batches; null: this rank alone.
  optim::Ranks* ranks = nullptr;
  /// Of a pipeline, that the model here is (optim/pipeline.h), with the `ranks` that have it; null: it is whole.
  optim::Pipeline* stage = nullptr;
  StepJudge* judge = nullptr;  ///< decides in place of a scaler that looks at gradients; null: the scaler decides
};

/// A step that is fused, or whose parameters, gradients or optimizer state are in a tier, failed after it had updated
/// some of the parameters: those, their optimizer state and the count of updates stay changed. Its cause is nested
/// (std::rethrow_if_nested) and in the text.
class PartialUpdateError : public Error {
 public:
  PartialUpdateError(const std::string& message, std::size_t updated, std::size_t parameters)
      : Error(message), updated_(updated), parameters_(parameters) {}
  /// Parameters that are updated, of so many.
  std::size_t updated() const noexcept { return updated_; }
  std::size_t parameters() const noexcept { return parameters_; }

 private:
  std::size_t updated_, parameters_;
};

/// Forward and backward of every micro-batch (`loss_of(i)` gives its mean loss; optim/accumulate.h), clipping, one
/// update, gradients freed.
/// The optimizer's parameters alone are trained: every other leaf is a constant of the step, for which nothing is
/// computed, kept or accumulated, and `options.recording.leaves` is not looked at. So several optimizers take turns
/// over one net, and what none has is frozen. A parameter that the loss does not depend on stays as it is; a loss that
/// depends on none of them throws AutogradError.
/// What the forward changes besides (batch-norm statistics, the generator's step) is committed at the end: a step that
/// throws leaves parameters, gradients, optimizer, statistics and generator as they were, bit by bit, and can be tried
/// again. So are buffers and parameters of modules that `loss_of` writes in place (copy_into, fill, WritePin; their
/// bytes count twice until the step ends); tensors that no module lists are the caller's. Gradients that exist at its
/// begin take part, as in any backward. Returns the mean loss, one element, not read. Throws ValueError for options out
/// of range, or a scaler and an optimizer that takes no gradient factor, PlanError where a placed arena stands behind
/// the parameters' resource and none of its steps has begun (memory/policies/placed.h), AutogradError as
/// Optimizer::check_members does, what optim::accumulate_gradients throws for a loss that is none, and what `loss_of`
/// throws.
///
/// With a `scaler` gradients are those of the scaled loss, and the optimizer divides them as it reads them; clipping
/// takes part in that factor and does not write to them. Under a dynamic scale a step whose gradients are not all
/// finite is skipped: parameters, optimizer state, its count and batch-norm statistics stay as they were, bit by bit;
/// the generator goes on by a step, as the batch is used up, the scale falls, and gradients are freed. A step that
/// throws leaves the scaler as it was. What is planned is a step that is not skipped, which needs more.
///
/// `fuses_optimizer`, `gradient_tier` and `ranks` say where gradients go: one of them, or none, or PlanError is thrown
/// before anything is run. So it is for options that the sink does not support (nn/step/gradient_sink.h).
///
/// With `fuses_optimizer` the updates are made during backward, each after the last use of its parameter, re-runs of
/// segments included: the same bits. Optimizer state exists since the optimizer was made, and an update allocates
/// nothing. Throws PlanError for gradients from before, which could not be put back, and for `secured` without a
/// replayed step; PartialUpdateError as above.
///
/// With `gradient_tier` every gradient is sent there when it is complete, and comes back for its update: the same bits,
/// clipped or not. Throws PlanError for gradients from before; FileError with nothing changed before the first update,
/// PartialUpdateError after it.
///
/// With `ranks` every rank calls it with its own micro-batches, and all get the bits of one rank that has all of them
/// (optim/ranks.h). Throws PlanError with a judge, and for gradients from before. A rank that throws leaves the others
/// waiting: the code that runs the ranks ends them (dist/).
///
/// With a `stage` every stage calls it with the same micro-batches, and all get the bits of one rank that has the whole
/// model. Norms and losses are those of all stages.
///
/// Parameters may be in a store (core/tensor/parameter_store.h), with each of these: the same bits. They are away at
/// the begin and at the end of a step, so that steps need the same bytes. Throws what the store throws: with nothing
/// changed before the first update, PartialUpdateError after it.
Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options = {});

}  // namespace thimble::nn
