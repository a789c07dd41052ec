#include <thimble/nn/step.h>

#include <thimble/core/transaction.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/clip.h>

namespace thimble::nn {

Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options) {
  Transaction transaction;
  try {
    const Tensor loss =
        optim::accumulate_gradients(options.micro_batches, options.micro_samples, loss_of, options.recording);
    if (options.clip_norm > 0) optim::clip_grad_norm(optimizer.parameters(), options.clip_norm);
    optimizer.step();
    optimizer.zero_grad();
    transaction.commit();
    return loss;
  } catch (...) {
    optimizer.zero_grad();
    throw;
  }
}

}  // namespace thimble::nn
