#include <thimble/models/training/capture.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/memory/bytes.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace capture_detail {

/// A plan of the run's steps, placed.
nn::Plan placed(nn::Plan plan, PreparedTraining& prepared) {
  prepared.plan = std::move(plan);
  place_captured(prepared);
  return std::exchange(prepared.plan, {});
}

}  // namespace capture_detail

void check_capture(const TrainOptions& options) {
  if (!options.captures_steps) return;
  if (!options.device.is_cuda()) {
    throw ValueError("`captures_steps`: the " + to_string(options.device) +
                     " records no steps; expected `device` cuda");
  }
  refuse_uncaptured(options.setup, "`captures_steps`");
}

void place_captured(PreparedTraining& prepared) {
  const memory::Device on = dry(prepared.options.device);
  const nn::MakeRun program = training_program(prepared);
  nn::Plan& plan = prepared.plan;
  plan.placement.clear();
  plan.placement = nn::plan_steps(on, program, nn::placement_options(on, prepared.options.setup.micro_batches));
  const nn::MemoryProfile profile = nn::profile_training(on, program, 2, false, plan.placement);
  if (profile.placed.deviations > 0 || profile.placed.dynamic_steps > 0) {
    throw PlanError(
        "`captures_steps`: a steady step does not ask for the same bytes each time (it left its plan at event " +
        std::to_string(profile.placed.last_deviation) +
        "), so that its addresses cannot be repeated; allowed is a run without `captures_steps`");
  }
  plan.peak_bytes = profile.peak_bytes;
  plan.peak_by_category = profile.peak_by_category;
}

nn::Plan fit_captured(nn::Planner& planner, PreparedTraining& prepared) {
  const std::size_t budget = prepared.options.budget_bytes;
  std::size_t target = budget;  // of a step that is not recorded, which needs a little less
  while (true) {
    nn::Plan plan;
    try {
      plan = planner.fit(target);
    } catch (const nn::BudgetError&) {
      const nn::Plan least = capture_detail::placed(planner.smallest(), prepared);
      if (least.peak_bytes <= budget) return least;
      throw nn::BudgetError("`captures_steps`: no plan of a captured step needs as little as " +
                                memory::exact_bytes(budget) + "; the smallest needs " +
                                memory::exact_bytes(least.peak_bytes),
                            budget, least.peak_bytes);
    }
    const std::size_t plain_bytes = plan.peak_bytes;
    plan = capture_detail::placed(std::move(plan), prepared);
    if (plan.peak_bytes <= budget) return plan;
    const std::size_t excess = plan.peak_bytes - budget;
    target = std::min(plain_bytes - 1, target - std::min(target, excess));
  }
}

}  // namespace thimble::models
