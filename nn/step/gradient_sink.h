#pragma once
// Where backward sends each completed gradient. Every step has one sink:
//
//   sink        a gradient
//   kept        stays until all are complete; then all parameters are updated
//   fused       its parameter is updated at once, and it is freed
//   offloaded   is sent to a tier, and comes back for its parameter's update
//   sharded     is sent to the ranks that sum it (optim/ranks.h), which have it until the update

#include <cstddef>
#include <cstdint>
#include <memory>

#include <thimble/autograd/tape.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/nn/step/step.h>

namespace thimble::nn {

enum class SinkKind : std::uint8_t { kept, fused, offloaded, sharded };

/// The options of a step that its sink supports.
struct SinkTraits {
  const char* name;      ///< as errors have it: "a fused optimizer"
  bool has_norm = true;  ///< of all gradients, before the first update, for clipping
  bool adds_micro_batches = true;
  bool takes_scale = true;             ///< of the loss
  bool takes_dynamic_scale = true;     ///< which decides from all gradients whether to update
  bool takes_during_backward = false;  ///< so that no more than some are here: not with StepOptions::on_gradients
  const char* why = "";                ///< it does not support the others
};
const SinkTraits& traits_of(SinkKind kind) noexcept;

/// The options of a step that concern its sink.
struct SinkDemands {
  double clip_norm = 0;
  std::int64_t micro_batches = 1;
  bool is_scaled = false, is_scale_dynamic = false;
  bool has_hook = false;
};
/// The first demand that the sink does not meet.
enum class SinkRefusal : std::uint8_t { none, clip_norm, micro_batches, loss_scale, hook };
SinkRefusal refusal_of(SinkKind kind, const SinkDemands& demands) noexcept;

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Called by backward with each leaf whose gradient is complete.
  virtual void take(const std::shared_ptr<Leaf>& leaf) = 0;
  /// After backward: makes the remaining updates, or skips them if the loss scaler decides so.
  virtual void finish(const Tensor& loss, Transaction& transaction) = 0;
  /// Parameters that are updated: from the first on the step cannot be undone.
  virtual std::size_t updated() const noexcept = 0;
};

/// The sink that these options ask for. Throws PlanError for two sinks, and for options that the sink does not support.
SinkKind check_sink(const optim::Optimizer& optimizer, const StepOptions& options);
/// Calls `body` with the sink of one step, which allocates nothing if gradients are kept.
void with_sink(SinkKind kind, optim::Optimizer& optimizer, const StepOptions& options,
               FunctionRef<void(GradientSink&)> body);

}  // namespace thimble::nn
