#include <thimble/models/training/certifying.h>

#include <cmath>
#include <memory>
#include <optional>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/checkpoints.h>

namespace thimble::models {

nn::Certificate certify_training(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  if (options.setup.packing.is_allowed) {
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

namespace {

/// The plan without packing: it keeps the packed tensors as they are.
std::shared_ptr<const TapePlan> without_packing(const std::shared_ptr<const TapePlan>& plan) {
  if (!plan) return nullptr;
  auto exact = std::make_shared<TapePlan>(*plan);
  std::erase_if(exact->spills, [](const TapePlan::Spill& s) { return s.form == TapePlan::Spill::Form::pack; });
  return exact;
}

bool is_finite(const nn::GradientReport& report) {
  return std::isfinite(report.all.norm) && !std::isnan(report.all.relative_error);
}

}  // namespace

nn::GradientReport packing_gradients(const PreparedTraining& prepared) {
  TrainOptions options = prepared.options;
  options.captures_steps = false;
  const memory::Stack stack = memory::make_resource(options.device);
  const ResourceScope scope(stack.top);
  const Tf32Scope products(options.allows_tf32);
  nn::Plan plan = prepared.plan;
  plan.placement.clear();
  Training training(options, *prepared.data, options.device, plan);
  if (!options.resume.empty()) training.load(options.resume);
  const Batch batch = prepared.data->batch(prepared.first_step, options.device, options.setup.precision.dtype);
  const nn::StepOptions& step = training.options();
  optim::RecordingOptions exact = step.recording;
  exact.plan = without_packing(step.recording.plan);
  const auto loss_of = [&](std::int64_t i) { return training.model().loss(micro_batch(batch, i, step.micro_batches)); };
  double scale = training.scaler() != nullptr ? training.scaler()->scale() : 1;
  while (true) {
    nn::GradientReport report = nn::compare_gradients(
        training.optimizer().parameters(), loss_of, exact, step.recording, step.micro_batches, step.micro_samples,
        training.scaler() != nullptr ? std::optional(scale) : std::nullopt, micro_batches(batch, step.micro_batches));
    const bool may_halve = training.scaler() != nullptr && training.scaler()->options().is_dynamic && scale > 1;
    if (!may_halve || is_finite(report)) return report;
    scale /= 2;
  }
}

}  // namespace thimble::models
