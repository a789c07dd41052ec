#pragma once
// Gradient accumulation: a batch in `count` micro-batches, with the memory of one.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

/// Options of recordings.
struct RecordingOptions {
  std::shared_ptr<const TapePlan> plan;  ///< followed by every recording, split over consecutive ones; may be null
  std::shared_ptr<memory::Tier> tier = nullptr;  ///< takes the plan's offloaded tensors
  /// Receives the (last) recording with its gradients' bytes, on a dry device (Tape::observe). Joins a stage's chunks.
  TapeGraph* graph = nullptr;
  std::size_t* nodes = nullptr;                     ///< receives the number of nodes of the (last) recording
  std::vector<const OpType*>* operators = nullptr;  ///< appends the operators of every recording; may be null
  TapeTimes* times = nullptr;                       ///< receives the times of the (last) recording's nodes
  const LeafSet* leaves = nullptr;  ///< trained leaves, all others are constants (Tape::train); defaults to all
  Ranks* ranks = nullptr;           ///< ranks that share the step's micro-batches; may be null
  Pipeline* stage = nullptr;        ///< the pipeline stage that this model is; null for a whole model
  /// Called with every leaf whose gradient is complete, in every micro-batch, before it is used; may be null.
  const LeafHook* watch = nullptr;
};

/// One of several unequal micro-batches.
struct MicroBatch {
  std::int64_t samples = 0;  ///< >= 1
  double weight = 0;         ///< number of samples, or of counted targets, in its loss's mean; >= 0 and finite
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

/// Forward and backward of `count` micro-batches; gradients add up in the leaves. `loss_of(i)` gives micro-batch i's
/// mean loss (recorded on a separate tape), which is multiplied by its fraction of all weights, so that the sum of
/// gradients is the gradient of the mean over the whole batch. Without `parts` all have `samples` samples and equal
/// weight; `parts` has one entry for each micro-batch and replaces `samples`. A micro-batch of weight 0 runs like the
/// others and adds 0 to the loss: its gradients must be finite, as for a cross entropy without targets. Random
/// operators draw the numbers of the whole batch. Returns the mean of the losses (one element). `on_gradient` is passed
/// to every backward (Tape::backward). `loss_scale`, the initial dy of backward, multiplies gradients but not the
/// returned losses.
///
/// Throws ValueError if count < 1, for several micro-batches with samples < 1, and for parts that are not `count`, have
/// no sample or a weight out of range, or a total weight of 0; ValueError, ShapeError, DTypeError or AutogradError for
/// a loss that is undefined, has not one element, is not floating or depends on no trained leaf; DTypeError for a scale
/// other than 1 and a loss narrower than f32.
///
/// With `recording.ranks` the `count` micro-batches (and `parts`) are this rank's, numbers i N + r of all
/// (optim/ranks.h); gradients go to the ranks, and the loss covers all ranks. With `recording.stage` micro-batches pass
/// in the stage's order, each on a separate tape (optim/pipeline.h). On all stages but the last `loss_of(i)` returns
/// the next stage's input; all stages return the last stage's loss.
Tensor accumulate_gradients(std::int64_t count, std::int64_t samples, FunctionRef<Tensor(std::int64_t)> loss_of,
                            const RecordingOptions& recording = {}, const LeafHook* on_gradient = nullptr,
                            std::optional<double> loss_scale = std::nullopt, std::span<const MicroBatch> parts = {});

}  // namespace thimble::optim
