// Trains a named model in the engine and reports on it.

#include <optional>
#include <utility>

#include <thimble/core/launch/compute_capability.h>
#include <thimble/models/training/plan_training.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::models {

TrainReport train(const PreparedTraining& prepared, const nn::TrainObserver& observer, const TrainWatcher& watcher,
                  const nn::TrainControl& control) {
  const TrainOptions& options = prepared.options;
  const Setup& setup = options.setup;
  TrainReport report;
  report.predicted_peak_bytes = prepared.plan.peak_bytes;
  report.time_overhead = prepared.plan.time_overhead;
  report.cost_model = prepared.cost_model;
  report.offloaded_bytes = prepared.plan.offloaded_bytes;
  report.packing = prepared.packing;
  report.predicted_tier_bytes = prepared.plan.tier_bytes;
  report.first_step = prepared.first_step;
  report.clip_norm = clip_norm(setup, prepared.is_text);
  const nn::TrainerOptions chosen = trainer_options(options, options.device);
  nn::RunNeed need{options.budget_bytes, prepared.plan.peak_bytes, prepared.plan.placement, std::nullopt, true};
  if (setup.layout.ranks == 1) need.outside = outside_facts(prepared);
  const nn::Engine engine(chosen, std::move(need));
  if (watcher) watcher(engine.stack());
  const ResourceScope scope(engine.stack().top);
  const Tf32Scope products(options.allows_tf32);
  const auto training = engine.start([&] {
    return std::make_unique<Training>(options, *prepared.data, options.device, prepared.plan, prepared.first_step);
  });
  report.parameters = training->model().parameter_count();
  for (const nn::Named& p : training->model().trainable()) report.trained_parameters += p.tensor.elements();
  report.optimizer = training->optimizer().name();
  report.full_state = training->optimizer().kept_full();
  const nn::LoopOptions looped{.resumed_steps = prepared.first_step,
                               .items_per_step = static_cast<double>(setup.batch * prepared.data->items_per_sample()),
                               .ranks = setup.layout.ranks > 1 ? options.ranks : nullptr};
  engine.run(*training, looped, observer, control, report);
  if (!training->sample().empty()) report.sample = prepared.data->decode(training->sample());
  training->rest();
  engine.measure(*training, looped.ranks, report);
  return report;
}

}  // namespace thimble::models
