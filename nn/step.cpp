#include <thimble/nn/step.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/core/transaction.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/clip.h>

namespace thimble::nn {

Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options) {
  if (!(options.clip_norm >= 0)) {
    throw ValueError("training_step: clip_norm " + std::to_string(options.clip_norm) + "; allowed: > 0, or 0 for none");
  }
  Transaction transaction;
  const Tensor loss =
      optim::accumulate_gradients(options.micro_batches, options.micro_samples, loss_of, options.recording);
  if (options.clip_norm > 0) optim::clip_grad_norm(optimizer.parameters(), options.clip_norm);
  optimizer.step();
  optimizer.zero_grad();
  transaction.commit();
  return loss;
}

}  // namespace thimble::nn
