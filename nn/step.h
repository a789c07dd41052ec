#pragma once
// One training step as a transaction.

#include <thimble/core/parallel.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

struct StepOptions {
  double clip_norm = 0;            ///< > 0: gradients are clipped by their global norm
  std::int64_t micro_batches = 1;  ///< gradient accumulation
  std::int64_t micro_samples = 0;  ///< samples per micro-batch; needed when there are several
  optim::RecordingOptions recording = {};
};

/// Forward and backward of every micro-batch (`loss_of(i)` gives its mean loss), clipping, one update, gradients freed.
/// What the forward changes besides (batch-norm statistics, the generator's step) is committed at the end: a step that
/// throws leaves model, optimizer and generator as they were. Returns the mean loss, one element, not read.
Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options = {});

}  // namespace thimble::nn
