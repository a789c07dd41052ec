#include <thimble/nn/trainer/run_plans.h>

#include <limits>
#include <utility>

#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/recycled.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/process/process.h>
#include <thimble/nn/fit/process_budget.h>

namespace thimble::nn {

RunPlans::RunPlans(PlannedProgram& program, TrainerOptions& options, const CostModel& costs)
    : program_(program),
      options_(options),
      costs_(costs),
      budget_(options.process_budget_bytes > 0 ? 0 : options.budget_bytes) {}

std::vector<std::shared_ptr<Planner>> RunPlans::planners_of(const ExampleStep& step) const {
  std::vector<std::shared_ptr<Planner>> planners;
  for (std::size_t part = 0; part < program_.part_count(); ++part) {
    planners.push_back(
        std::make_shared<Planner>(program_.part_run(step, part), options_.device, costs_, options_.planner));
  }
  return planners;
}

void RunPlans::set_planners(ShapePlan& shape, std::vector<std::shared_ptr<Planner>> planners) {
  shape.planners = std::move(planners);
  for (const std::shared_ptr<Planner>& planner : shape.planners) {
    nodes_ = std::max(nodes_, planner->graph().nodes.size());
    kept_step_s_ = planner->kept_step_s();
  }
}

void RunPlans::choose_micro_batches(const std::vector<ExampleStep>& steps) {
  begin_ms_ = process::processor_ms();
  options_.step.micro_batches = 1;
  if (options_.process_budget_bytes > 0) {
    const MakeRun run = program_.part_run(steps.front(), 0);
    nodes_ = profile_training(dry(options_.device), run, 1).nodes;
    const std::size_t left = arena_budget(options_.process_budget_bytes, outside());
    budget_ = options_.budget_bytes > 0 ? std::min(options_.budget_bytes, left) : left;
  }
  std::int64_t fastest = 0, smallest = 1;
  double fastest_s = 0;
  std::size_t smallest_bytes = std::numeric_limits<std::size_t>::max();
  for (std::int64_t count = 1; program_.cuts_into(count); count *= 2) {
    options_.step.micro_batches = count;
    double seconds = 0;
    std::size_t bytes = 0;
    std::vector<std::shared_ptr<Planner>> all;
    try {
      for (const ExampleStep& step : steps) {
        for (std::shared_ptr<Planner>& planner : planners_of(step)) {
          bytes = std::max(bytes, planner->smallest().peak_bytes);
          if (bytes <= budget_) seconds += planner->fit(budget_).step_s;
          all.push_back(std::move(planner));
        }
      }
    } catch (const Error&) {
      if (count == 1) throw;
      break;  // the batch has fewer samples
    }
    const bool is_smallest = bytes < smallest_bytes;
    const bool is_fastest = bytes <= budget_ && (fastest == 0 || seconds < fastest_s);
    if (is_smallest) smallest = count, smallest_bytes = bytes;
    if (is_fastest) fastest = count, fastest_s = seconds;
    if (is_fastest || (is_smallest && fastest == 0)) chosen_ = std::move(all);
  }
  options_.step.micro_batches = fastest > 0 ? fastest : smallest;
}

ShapePlan& RunPlans::add(std::unique_ptr<ShapePlan> shape) {
  if (chosen_.empty()) begin_ms_ = process::processor_ms();
  shape->parts.resize(program_.part_count());
  shape->is_given = options_.plan && shapes_.empty();
  if (!chosen_.empty()) {
    const auto end = chosen_.begin() + static_cast<std::ptrdiff_t>(program_.part_count());
    set_planners(*shape, {chosen_.begin(), end});
    chosen_.erase(chosen_.begin(), end);
  } else if (is_planned() && !shape->is_given) {
    set_planners(*shape, planners_of(shape->example));
  }
  shapes_.push_back(std::move(shape));
  return *shapes_.back();
}

void RunPlans::fit() {
  struct Before {
    std::vector<Plan> parts;
    std::vector<memory::StepPlacement> placement;
  };
  std::vector<Before> before;
  for (const auto& s : shapes_) before.push_back({s->parts, s->placement});
  try {
    if (shapes_.size() == 1 && shapes_.front()->is_given) {
      const MakeRun run = program_.part_run(shapes_.front()->example, 0);
      shapes_.front()->parts = {options_.plan(run, options_.device, options_.planner.make_tier)};
    }
    fit_budgets();
  } catch (...) {
    shapes_.pop_back();
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      shapes_[i]->parts = std::move(before[i].parts);
      shapes_[i]->placement = std::move(before[i].placement);
    }
    throw;
  }
}

/// Plans every part of every key separately within `target_bytes`. False if one does not fit.
bool RunPlans::fit_parts(std::size_t target_bytes) {
  for (const auto& shape : shapes_) {
    for (std::size_t part = 0; part < shape->planners.size(); ++part) {
      try {
        shape->parts[part] = program_.for_this_rank(shape->planners[part]->fit(target_bytes), shape->example, part);
      } catch (const BudgetError&) {
        return false;
      }
    }
  }
  return true;
}

void RunPlans::fit_smallest() {
  for (const auto& shape : shapes_) {
    for (std::size_t part = 0; part < shape->planners.size(); ++part) {
      shape->parts[part] = program_.for_this_rank(shape->planners[part]->smallest(), shape->example, part);
    }
  }
}

/// Places the steps of all keys and runs them dry in that placement: each step twice, then the rest of the run. Returns
/// the largest need of any rank, so that all ranks decide alike.
std::size_t RunPlans::place() {
  const memory::Device on = dry(options_.device);
  if (program_.is_whole_run() && is_planned() && !options_.captures_steps) {  // its planner placed it
    const Plan& plan = shapes_.front()->parts.front();
    profile_ = MemoryProfile();
    profile_.peak_bytes = plan.peak_bytes;
    profile_.lower_bound_bytes = plan.lower_bound_bytes;
    profile_.peak_by_category = plan.peak_by_category;
    profile_.tier_bytes = plan.tier_bytes;
  } else {
    std::vector<ExampleStep> all_steps;
    std::size_t plans = 0;
    for (const auto& shape : shapes_) {
      const std::vector<ExampleStep> steps(2, shape->example);
      all_steps.insert(all_steps.end(), steps.begin(), steps.end());
      if (is_planned() || options_.captures_steps || (!is_dynamic_ && shape->placement.empty())) {
        const MemoryProfile traced = profile_training(on, program_.planned_run(steps, shapes_), 2, true);
        shape->placement = plan_steps(traced, placement_options(on, options_.step.micro_batches));
      }
      shape->first_plan = plans;
      plans += shape->placement.size();
    }
    const MakeRun run = program_.planned_run(all_steps, shapes_);
    profile_ = profile_training(on, run, all_steps.size(), false, placements());
    if (!is_planned() && !options_.captures_steps && !is_held_ && shapes_.size() == 1) {
      MemoryProfile dynamic = profile_training(on, run, all_steps.size());
      if (dynamic.peak_bytes < profile_.peak_bytes) {
        is_dynamic_ = true;
        shapes_.front()->placement.clear();
        profile_ = std::move(dynamic);
      }
    }
  }
  if (options_.captures_steps && profile_.placed.deviations + profile_.placed.dynamic_steps > 0) {
    throw PlanError(
        "`captures_steps`: a steady step does not ask for the same bytes each time (it left its plan at event " +
        std::to_string(profile_.placed.last_deviation) +
        "), so that its addresses cannot be repeated; expected a run without `captures_steps`");
  }
  plan_.peak_bytes = profile_.peak_bytes;
  plan_.lower_bound_bytes = profile_.lower_bound_bytes;
  plan_.tier_bytes = profile_.tier_bytes;
  plan_.peak_by_category = profile_.peak_by_category;
  plan_.rank_peak_bytes = program_.rank_bytes(profile_.peak_bytes);
  const auto& all = plan_.rank_peak_bytes;
  return all.empty() ? profile_.peak_bytes : *std::max_element(all.begin(), all.end());
}

std::vector<memory::StepPlacement> RunPlans::placements() const {
  std::vector<memory::StepPlacement> all;
  for (const auto& shape : shapes_) all.insert(all.end(), shape->placement.begin(), shape->placement.end());
  return all;
}

void RunPlans::fit_arena() {
  for (const auto& shape : shapes_) {
    if (!is_planned() || shape->is_given || !shape->planners.empty()) continue;
    set_planners(*shape, planners_of(shape->example));
  }
  if (budget_ == 0) {
    place();
    return;
  }
  constexpr int max_tries = 6;
  std::size_t target = budget_;
  for (int i = 0; i < max_tries && fit_parts(target); ++i) {
    const std::size_t most = place();
    if (most <= budget_) return;
    target -= std::min(target, most - budget_);
  }
  fit_smallest();
  if (const std::size_t least = place(); least > budget_) program_.refuse(least);
}

memory::OutsideFacts RunPlans::outside_facts() const {
  memory::OutsideFacts facts = program_.outside_facts(node_count());
  for (const auto& shape : shapes_) facts.events += event_count(shape->placed());
  return facts;
}

/// A run that is planned as a whole starts without its planners, so they do not count.
memory::OutsideBytes RunPlans::outside() {
  if (program_.is_whole_run()) release_planners();
  return memory::outside_bytes(memory::ProcessBase::measure(), outside_facts());
}

void RunPlans::fit_budgets() {
  if (options_.process_budget_bytes == 0 || is_held_) return fit_arena();
  plan_.outside = fit_process(
      options_.process_budget_bytes, options_.budget_bytes, [&] { return outside(); },
      [&](std::size_t arena_bytes) {
        budget_ = arena_bytes;
        fit_arena();
        return plan_.peak_bytes;
      });
}

void RunPlans::release_planners() {
  for (const auto& shape : shapes_) shape->planners.clear();
  SpareTape::release();
  tape::Transaction::release_room();
  release_recycled();
  for (const auto& shape : shapes_) {
    for (Plan& plan : shape->parts) plan = Plan(std::as_const(plan));  // moves its memory away from the freed planners'
  }
}

}  // namespace thimble::nn
