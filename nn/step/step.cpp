#include <thimble/nn/step/step.h>

#include <exception>
#include <optional>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/nn/step/gradient_sink.h>
#include <thimble/optim/pipeline.h>
#include <thimble/optim/ranks.h>

namespace thimble::nn {
namespace {

// If no step begins, the plan has no effect, and neither has the budget that it keeps.
void check_placed_step(const optim::Optimizer& optimizer) {
  if (optimizer.parameters().empty()) return;
  const memory::Device device = optimizer.parameters().front().tensor.device();
  const memory::PlacedArena* const placed = memory::PlacedArena::find(*current_resource(device));
  if (placed == nullptr || placed->is_in_step()) return;
  throw PlanError(
      "training_step: the memory of this step is planned, and no planned step has begun; let `const PlacedArena::Step "
      "step(*stack.placed);` (memory/policies/placed.h) live from before the step's batch is made until its loss is "
      "gone");
}

/// Frees the ranks' and the stage's data of a step at its end.
class RanksStep {
 public:
  explicit RanksStep(const StepOptions& options) : ranks_(options.ranks), stage_(options.stage) {}
  ~RanksStep() {
    if (stage_ != nullptr) stage_->drop();
    if (ranks_ != nullptr) ranks_->drop_gradients();
  }
  RanksStep(const RanksStep&) = delete;
  RanksStep& operator=(const RanksStep&) = delete;

 private:
  optim::Ranks* ranks_;
  optim::Pipeline* stage_;
};

[[noreturn]] void throw_partial(const std::exception& error, std::size_t done, std::size_t all) {
  std::throw_with_nested(PartialUpdateError("training_step: failed when " + std::to_string(done) + " of " +
                                                std::to_string(all) +
                                                " parameters were updated, and they stay so: " + error.what(),
                                            done, all));
}

}  // namespace

Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options) {
  optim::RecordingOptions recording = options.recording;
  recording.leaves = options.ranks != nullptr ? &options.ranks->leaves() : &optimizer.leaves();
  recording.ranks = options.ranks;
  recording.stage = options.stage;
  if (!(options.clip_norm >= 0)) {
    throw ValueError("training_step: clip_norm " + std::to_string(options.clip_norm) + "; expected > 0, or 0 for none");
  }
  if (options.scaler != nullptr && !optimizer.takes_gradient_factor()) {
    throw ValueError(std::string("training_step: ") + optimizer.name() +
                     " cannot divide gradients by a loss scale; optimizers whose takes_gradient_factor() is true can");
  }
  optimizer.check_members();
  check_placed_step(optimizer);
  const SinkKind kind = check_sink(optimizer, options);
  if (options.stage != nullptr) options.stage->begin_step();
  if (options.ranks != nullptr) options.ranks->begin_step(optimizer, options.micro_batches);
  const ParameterUse use;
  tape::Transaction transaction;
  const RanksStep ranks(options);
  if (options.ranks != nullptr) transaction.defer_updates();
  Tensor loss;
  with_sink(kind, optimizer, options, [&](GradientSink& sink) {
    const auto take = [&](const std::shared_ptr<tape::Leaf>& leaf) { sink.take(leaf); };
    const LeafHook hook(take);
    const auto scale = options.scaler != nullptr ? std::optional(options.scaler->scale()) : std::nullopt;
    try {
      loss = optim::accumulate_gradients(options.micro_batches, options.micro_samples, loss_of, recording,
                                         traits_of(kind).takes_during_backward ? &hook : nullptr, scale, options.parts);
      sink.finish(loss, transaction);
    } catch (const std::exception& error) {
      if (sink.updated() == 0) throw;
      throw_partial(error, sink.updated(), optimizer.parameters().size());
    }
  });
  if (options.ranks != nullptr) options.ranks->share_parameters();
  if (options.stage != nullptr) options.stage->share_parameters();
  if (options.ranks != nullptr) options.ranks->share_state(transaction);
  optimizer.zero_grad();
  transaction.commit();
  return loss;
}

}  // namespace thimble::nn
