#include <thimble/nn/fit/fit.h>

#include <cmath>
#include <utility>

#include <thimble/memory/units.h>
#include <thimble/nn/fit/plan_search.h>

namespace thimble::nn {

void Plan::apply(StepOptions& options, memory::Device device) const {
  if (const std::string here = machine_text(device); key && key->machine != here) {
    throw PlanError("plan: it was made for '" + key->machine + "', here it is '" + here + "'");
  }
  options.recording.plan = tape;
  options.recording.tier = tape && tape->offloads() ? make_tier(device) : nullptr;
}

Planner::Planner(MakeRun make, memory::Device device, const CostModel& costs, PlannerOptions options)
    : search_(std::make_unique<PlanSearch>(std::move(make), device, costs, std::move(options))) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::fit(std::size_t budget_bytes) {
  if (const Plan* const plan = search_->find(budget_bytes)) return *plan;
  const Plan& least = smallest();
  throw BudgetError("fit: no plan needs as little as " + memory::exact_bytes(budget_bytes) + "; the smallest needs " +
                        memory::exact_bytes(least.peak_bytes) + " at " +
                        std::to_string(std::lround(100 * least.time_overhead)) + " % more time, keeping everything " +
                        memory::exact_bytes(keep_everything().peak_bytes),
                    budget_bytes, least.peak_bytes);
}

std::vector<Plan> Planner::plans() { return search_->plans(); }
const Plan& Planner::smallest() { return search_->smallest(); }
std::size_t Planner::least_load() { return search_->least_load(); }
const Plan& Planner::keep_everything() { return search_->keep_everything(); }
double Planner::kept_step_s() const noexcept { return search_->kept_step_s(); }
std::int64_t Planner::parameters() const noexcept { return search_->parameters(); }
const TapeGraph& Planner::graph() const noexcept { return search_->graph(); }

Plan place_anew(const Plan& plan, const MakeRun& make, memory::Device device) {
  const memory::Device on = dry(device);
  Plan placed = plan;
  placed.placement.clear();
  const MakeRun follow = [&](memory::Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    placed.apply(run->options(), target);
    return run;
  };
  PlanKey key;
  std::int64_t micro_batches = 1;
  record_step(on, make, [&](TrainingRun& run, const TapeGraph& recording) {
    key = plan_key(on, recording, run);
    micro_batches = run.options().micro_batches;
    if (!placed.tape) return;
    const auto tape = std::make_shared<TapePlan>(*placed.tape);
    tape->sizes = recording.sizes();
    placed.tape = tape;
  });
  placed.key = std::make_shared<const PlanKey>(std::move(key));
  PlacedProfile of_steps = profile_placed(on, follow, micro_batches);
  placed.placement = std::move(of_steps.placement);
  placed.peak_bytes = of_steps.profile.peak_bytes;
  placed.peak_by_category = of_steps.profile.peak_by_category;
  placed.lower_bound_bytes = of_steps.profile.lower_bound_bytes;
  placed.tier_bytes = of_steps.profile.tier_bytes;
  return placed;
}

}  // namespace thimble::nn
