#pragma once
// One training step as a transaction.

#include <thimble/core/parallel.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

struct StepOptions {
  double clip_norm = 0;            ///< > 0: gradients are clipped by their global norm; 0: they are not
  std::int64_t micro_batches = 1;  ///< gradient accumulation
  std::int64_t micro_samples = 0;  ///< samples per micro-batch; needed when there are several
  optim::RecordingOptions recording = {};
};

/// Forward and backward of every micro-batch (`loss_of(i)` gives its mean loss), clipping, one update, gradients freed.
/// What the forward changes besides (batch-norm statistics, the generator's step) is committed at the end: a step that
/// throws leaves parameters, gradients, optimizer, statistics and generator as they were, bit by bit, and can be tried
/// again. Gradients that are there at its begin take part, as in any backward. Returns the mean loss, one element, not
/// read. Throws ValueError for options out of range, and what `loss_of` throws.
Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options = {});

}  // namespace thimble::nn
