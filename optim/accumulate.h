#pragma once
// Gradient accumulation: a batch in `count` micro-batches, at the memory of one.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <thimble/autograd/leaf_set.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>

namespace thimble {
struct TapeGraph;  // autograd/graph.h
}

namespace thimble::optim {

class Ranks;
class Pipeline;

/// How recordings are made.
struct RecordingOptions {
  std::shared_ptr<const TapePlan> plan;  ///< followed by every recording, of several in a row each its own; null: none
  std::shared_ptr<Tier> tier = nullptr;  ///< where what the plan offloads goes
  /// Receives the (last) recording, on a dry device (Tape::observe): of a stage's chunks one after the other.
  TapeGraph* graph = nullptr;
  std::size_t* nodes = nullptr;     ///< receives the number of nodes of the (last) recording
  TapeTimes* times = nullptr;       ///< receives the times of the (last) recording's nodes
  const LeafSet* leaves = nullptr;  ///< that are trained, all others are constants (Tape::train); null: all
  Ranks* ranks = nullptr;           ///< that compute further micro-batches of the same step; null: none
  Pipeline* stage = nullptr;        ///< of a pipeline, that the model here is; null: the model is whole
  /// Shown every leaf whose gradient is complete, in every micro-batch, before anything is done with it; null: nobody.
  const LeafHook* watch = nullptr;
};

/// One of several micro-batches that are not alike.
struct MicroBatch {
  std::int64_t samples = 0;  ///< >= 1
  double weight = 0;  ///< what its loss is a mean over: samples, or the targets of them that count. >= 0 and finite
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

/// Forward and backward of `count` micro-batches; gradients add up in the leaves. `loss_of(i)` gives micro-batch i's
/// mean loss (recorded on a tape of its own), which is multiplied by its share of all weights, so that the sum of
/// gradients is that of the mean over the whole batch. Without `parts` all have `samples` samples and weigh the same;
/// with them there is one for each micro-batch, and `samples` is not looked at. A part of weight 0 runs like the
/// others and adds 0 to the loss: its gradients must be finite, as those of a cross entropy without targets are.
/// Random operators draw what the whole batch would have drawn. Returns the mean of the losses (one element). Throws
/// ValueError when count < 1, for several micro-batches with samples < 1, and for parts that are not `count`, have no
/// sample or a weight out of range, or weigh nothing together; ValueError, ShapeError, DTypeError or AutogradError for
/// a loss that is undefined, has not one element, is not floating or depends on no leaf that is trained. `on_gradient`
/// is handed to every backward (Tape::backward). Gradients are those of the loss times `loss_scale`, which backward
/// starts from; the losses returned are not scaled. Throws DTypeError for a scale other than 1 and a loss narrower than
/// f32.
///
/// With `recording.ranks` the `count` micro-batches are this rank's, numbers i N + r of all (optim/ranks.h), and so are
/// `parts`; gradients go to the ranks, and the sum of losses is that of all.
///
/// With `recording.stage` micro-batches pass in its order, each on a tape of its own (optim/pipeline.h). On all stages
/// but the last `loss_of(i)` gives what goes to the next one. The loss is that of the last stage, on all of them.
Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording = {}, const LeafHook* on_gradient = nullptr,
                            std::optional<double> loss_scale = std::nullopt, std::span<const MicroBatch> parts = {});

}  // namespace thimble::optim
