#include <thimble/models/training/plan_training.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/recycled.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/units.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/nn/fit/process_budget.h>

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
        "), so that its addresses cannot be repeated; expected a run without `captures_steps`");
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

memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes) {
  const bool plans_offload = !setup.offload.empty() && has_budget;
  const int tiers = (setup.offloads_optimizer ? 1 : 0) + (setup.offloads_parameters ? 1 : 0) +
                    (setup.offloads_gradients ? 1 : 0) + (plans_offload ? 1 : 0);
  return {.threads = thread_count(),
          .tier_threads = tiers * FileTier::Options().workers,
          .nodes = nodes,
          .staging = has_files ? nn::file_staging_bytes : 0,
          .data = data_bytes};
}

memory::OutsideFacts outside_facts(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  // A checkpoint is written from where its tensors lie. What is read is checked, and what others read is turned, in
  // pieces.
  const bool has_files = !options.resume.empty() || !options.save_weights.empty() || !options.setup.weights.empty() ||
                         !options.save_adapters.empty();
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  return outside_facts(options.setup, has_budget, has_files, prepared.nodes, prepared.data->heap_bytes());
}

std::size_t count_nodes(PreparedTraining& prepared) {
  Setup& setup = prepared.options.setup;
  const std::int64_t asked = setup.micro_batches;
  if (asked == auto_micro_batches) setup.micro_batches = 1;
  const std::size_t nodes = nn::profile_training(dry(prepared.options.device), training_program(prepared), 1).nodes;
  setup.micro_batches = asked;
  return nodes;
}

void fit_process(PreparedTraining& prepared, const std::function<void()>& plan) {
  TrainOptions& options = prepared.options;
  nn::fit_process(
      options.process_budget_bytes, options.budget_bytes,
      [&] { return memory::outside_bytes(memory::ProcessBase::measure(), outside_facts(prepared)); },
      [&](std::size_t arena_bytes) {
        options.budget_bytes = arena_bytes;
        plan();
        return prepared.plan.peak_bytes;
      });
}

// ---- Before the first step: how the run is planned.

namespace plan_training_detail {

/// Follows the plan of a file.
void plan_from_file(PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  const Setup& setup = options.setup;
  if (setup.micro_batches == auto_micro_batches || options.costs.measures || !options.costs.times.empty()) {
    throw ValueError("`plan`: not with `micro_batches` auto, `measures` or `times`, which are about planning");
  }
  if (options.captures_steps)
    throw ValueError("`plan`: not with `captures_steps`, whose steps are placed in another way");
  nn::Plan plan =
      nn::read_plan(options.plan, training_program(prepared), options.device,
                    planner_options(setup, options.device).make_tier, options.steps - prepared.first_step == 1 ? 1 : 2);
  if (plan.packed_bytes > 0 && !setup.allows_lossy) {
    throw ValueError("`plan`: '" + options.plan +
                     "' packs tensors, which rounds gradients; expected `allows_lossy` beside it");
  }
  if (options.budget_bytes > 0 && plan.peak_bytes > options.budget_bytes) {
    throw nn::BudgetError("`plan`: '" + options.plan + "' needs " + memory::exact_bytes(plan.peak_bytes) +
                              ", the budget is " + memory::exact_bytes(options.budget_bytes),
                          options.budget_bytes, plan.peak_bytes);
  }
  prepared.packing = packed_bytes_of(plan);
  prepared.plan = std::move(plan);
}

/// Chooses what the setup leaves open and finds the plan. Throws BudgetError with the techniques that would fit.
void plan_in_budget(PreparedTraining& prepared) {
  Setup& setup = prepared.options.setup;
  const auto run_of = [&prepared](const Setup& other) -> nn::MakeRun {
    TrainOptions options = prepared.options;
    options.setup = other;
    return [&prepared, options = std::move(options)](memory::Device device) {
      return std::make_unique<Training>(options, *prepared.data, device, nn::Plan(), prepared.first_step);
    };
  };
  const nn::CostModel costs =
      plan_costs(setup, prepared.options.costs, prepared.options.budget_bytes, prepared.options.device);
  prepared.cost_model = costs.source;
  ChoiceOptions choices(prepared.options, costs, run_of);
  choices.captures_steps = prepared.options.captures_steps;
  auto [chosen, planner] = choose_step(choices, setup);
  setup = chosen;
  prepared.nodes = planner->graph().nodes.size();
  nn::Plan plan;
  try {
    plan =
        prepared.options.captures_steps ? fit_captured(*planner, prepared) : fit_in_budget(choices, chosen, *planner);
  } catch (const nn::BudgetError& error) {
    planner.reset();  // the others need its bytes
    throw nn::with_offers(error, offer_techniques(choices, chosen));
  }
  plan.time_overhead = plan.step_s / plain_step_seconds(choices, chosen, *planner) - 1;
  prepared.packing = packed_bytes_of(plan);
  prepared.plan = std::move(plan);
}

/// What dry steps have left for the next ones goes back to the heap.
void release_rooms() {
  SpareTape::release();
  Transaction::release_room();
  release_recycled();
}

}  // namespace plan_training_detail

void plan_training(PreparedTraining& prepared) {
  namespace detail = plan_training_detail;
  const Tf32Scope products(prepared.options.allows_tf32);  // plans count with its rate
  const auto plan = [&prepared] {
    prepared.plan = {};  // of an earlier try for the process: the program that is planned would follow it
    if (!prepared.options.plan.empty()) {
      detail::plan_from_file(prepared);
    } else if (prepared.options.device == cpu && prepared.options.setup.ranks == 1) {
      nn::plan_in_bound(prepared.options.process_budget_bytes, [&] { detail::plan_in_budget(prepared); });
    } else {
      detail::plan_in_budget(prepared);
    }
    detail::release_rooms();
    prepared.plan = nn::Plan(std::as_const(prepared.plan));  // the planner has freed what lies below: a copy lies lower
  };
  const int ranks = prepared.options.setup.ranks;
  check_process_budget(prepared.options);
  if (ranks > 1 && prepared.options.captures_steps) {
    throw ValueError("`captures_steps`: not with `ranks` " + std::to_string(ranks) + "; expected one rank");
  }
  if (prepared.options.process_budget_bytes > 0) {
    prepared.nodes = count_nodes(prepared);
    fit_process(prepared, plan);
  } else if (!prepared.options.plan.empty() || prepared.options.budget_bytes > 0) {
    plan();
  } else if (prepared.options.captures_steps) {
    place_captured(prepared);
  } else {
    const nn::MemoryProfile profile = nn::profile_training(dry(prepared.options.device), training_program(prepared));
    prepared.plan.peak_bytes = profile.peak_bytes;
    prepared.plan.tier_bytes = profile.tier_bytes;
    prepared.nodes = profile.nodes;
    prepared.is_steady = profile.is_steady;
    detail::release_rooms();
  }
}

}  // namespace thimble::models
