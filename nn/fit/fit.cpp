#include <thimble/nn/fit/fit.h>

#include <utility>

#include <thimble/memory/bytes.h>
#include <thimble/nn/fit/plan_search.h>

namespace thimble::nn {

void Plan::apply(StepOptions& options, Device device) const {
  if (const std::string here = machine_text(device); key && key->machine != here) {
    throw PlanError("plan: it was made for '" + key->machine + "', here it is '" + here + "'");
  }
  options.recording.plan = tape;
  options.recording.tier = tape && tape->offloads() ? make_tier(device) : nullptr;
}

Planner::Planner(MakeRun make, Device device, const CostModel& costs, PlannerOptions options)
    : search_(std::make_unique<PlanSearch>(std::move(make), device, costs, std::move(options))) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::fit(std::size_t budget_bytes) {
  if (const Plan* const plan = search_->find(budget_bytes)) return *plan;
  const Plan& least = smallest();
  throw BudgetError("fit: no plan needs as little as " + memory::exact_bytes(budget_bytes) + "; the smallest needs " +
                        memory::exact_bytes(least.peak_bytes) + " at " +
                        std::to_string(static_cast<int>(100 * least.time_overhead + 0.5)) +
                        " % more time, keeping everything " + memory::exact_bytes(keep_everything().peak_bytes),
                    budget_bytes, least.peak_bytes);
}

std::vector<Plan> Planner::plans() { return search_->plans(); }
const Plan& Planner::smallest() { return search_->smallest(); }
const Plan& Planner::keep_everything() const noexcept { return search_->keep_everything(); }
std::int64_t Planner::parameters() const noexcept { return search_->parameters(); }
const TapeGraph& Planner::graph() const noexcept { return search_->graph(); }

}  // namespace thimble::nn
