#pragma once
// Where backward sends each completed gradient. A step has one sink:
//
//   sink        a gradient
//   kept        stays until all are complete; then all parameters are updated
//   fused       updates its parameter at once, and is freed
//   offloaded   moves to a tier, and returns for its parameter's update
//   sharded     goes to the ranks that sum it (optim/ranks.h) and hold it until the update

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
  const char* name;      ///< in error messages: "a fused optimizer"
  bool has_norm = true;  ///< all gradients have a norm before the first update, for clipping
  bool adds_micro_batches = true;
  bool takes_scale = true;             ///< of the loss
  bool takes_dynamic_scale = true;     ///< needs all gradients to decide on the update
  bool takes_during_backward = false;  ///< so gradients are never complete together, for StepOptions::on_gradients
  const char* why = "";                ///< reason for the options that it refuses
};
const SinkTraits& traits_of(SinkKind kind) noexcept;

struct SinkDemands {
  double clip_norm = 0;
  std::int64_t micro_batches = 1;
  bool is_scaled = false, is_scale_dynamic = false;
  bool has_hook = false;
};
/// The first demand that the sink cannot meet.
enum class SinkRefusal : std::uint8_t { none, clip_norm, micro_batches, loss_scale, hook };
SinkRefusal refusal_of(SinkKind kind, const SinkDemands& demands) noexcept;

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Called by backward with each leaf whose gradient is complete.
  virtual void take(const std::shared_ptr<tape::Leaf>& leaf) = 0;
  /// After backward: makes the remaining updates, or skips them if the loss scaler decides so.
  virtual void finish(const Tensor& loss, tape::Transaction& transaction) = 0;
  /// Parameters updated so far; after the first the step cannot be undone.
  virtual std::size_t updated() const noexcept = 0;
};

/// The sink that the options select. Throws PlanError for two sinks, and for options that the sink does not support.
SinkKind check_sink(const optim::Optimizer& optimizer, const StepOptions& options);
/// Calls `body` with the sink of one step. It allocates nothing if gradients are kept.
void with_sink(SinkKind kind, optim::Optimizer& optimizer, const StepOptions& options,
               FunctionRef<void(GradientSink&)> body);

}  // namespace thimble::nn
