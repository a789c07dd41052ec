#pragma once
// Gradient accumulation: a batch in `count` micro-batches, at the memory of one.

#include <cstdint>
#include <memory>
#include <optional>

#include <thimble/autograd/tape.h>
#include <thimble/core/parallel.h>
#include <thimble/core/tensor.h>

namespace thimble {
struct TapeGraph;  // autograd/graph.h
}

namespace thimble::optim {

/// How recordings are made.
struct RecordingOptions {
  std::shared_ptr<const TapePlan> plan;  ///< followed by every recording; null: none
  std::shared_ptr<Tier> tier = nullptr;  ///< where what the plan offloads goes
  TapeGraph* graph = nullptr;            ///< receives the (last) recording, on a dry device (Tape::observe)
  TapeTimes* times = nullptr;            ///< receives the times of the (last) recording's nodes
  /// Shown every leaf whose gradient is complete, in every micro-batch, before anything is done with it; null: nobody.
  const LeafHook* watch = nullptr;
};

/// Forward and backward of `count` micro-batches of `samples` samples each; gradients add up in the leaves.
/// `loss_of(i)` gives micro-batch i's mean loss (recorded on a tape of its own); it is divided by `count`, so that the
/// sum of gradients is that of the mean over the whole batch. Random operators draw what the whole batch would have
/// drawn. Returns the mean of the losses (one element). Throws ValueError when count < 1, or when samples < 1
/// and there are several micro-batches. `on_gradient` is handed to every backward (Tape::backward). Gradients are those
/// of the loss times `loss_scale`, which backward starts from; the losses returned are not scaled. Throws DTypeError
/// for a scale other than 1 and a loss narrower than f32.
Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording = {}, const LeafHook* on_gradient = nullptr,
                            std::optional<double> loss_scale = std::nullopt);

}  // namespace thimble::optim
