#include <thimble/models/training/certifying.h>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>

namespace thimble::models {

nn::Certificate certify_training(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  if (options.setup.allows_lossy) {
    throw ValueError("certify: `allows_lossy` rounds gradients, so bits differ; leave it out");
  }
  if (options.budget_bytes == 0 && options.plan.empty()) {
    throw ValueError("certify: no plan to hold against the plain run; `budget_bytes` or `plan` is needed");
  }
  const Tf32Scope products(options.allows_tf32);
  const nn::Plan everything_kept;
  nn::Certificate certificate =
      nn::certify(training_program(prepared, everything_kept), training_program(prepared), options.device,
                  prepared.plan.placement, {.steps = options.steps, .finishes = true});
  certificate.predicted_peak_bytes = prepared.plan.peak_bytes;
  return certificate;
}

}  // namespace thimble::models
