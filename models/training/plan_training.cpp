#include <thimble/models/training/plan_training.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/nn/fit/process_budget.h>

namespace thimble::models {

void check_capture(const TrainOptions& options) {
  if (!options.captures_steps) return;
  if (!options.device.is_cuda()) {
    throw ValueError("`captures_steps`: the " + to_string(options.device) +
                     " records no steps; expected `device` cuda");
  }
  refuse_uncaptured(options.setup, "`captures_steps`");
}

memory::OutsideFacts outside_facts(const Setup& setup, bool has_budget, bool has_files, std::size_t nodes,
                                   std::size_t data_bytes) {
  const bool plans_offload = !setup.offload.to.empty() && has_budget;
  const int tiers = (setup.offload.optimizer ? 1 : 0) + (setup.offload.parameters ? 1 : 0) +
                    (setup.offload.gradients ? 1 : 0) + (plans_offload ? 1 : 0);
  return {.threads = thread_count(),
          .tier_threads = tiers * memory::FileTier::Options().workers,
          .nodes = nodes,
          .staging = has_files ? nn::file_staging_bytes : 0,
          .data = data_bytes};
}

memory::OutsideFacts outside_facts(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  // A checkpoint is written straight from its tensors. Reading checks, and writing for other programs transposes, both
  // through a staging buffer.
  const bool has_files = !options.resume.empty() || !options.save_weights.empty() || !options.setup.weights.empty() ||
                         !options.save_adapters.empty();
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  memory::OutsideFacts facts =
      outside_facts(options.setup, has_budget, has_files, prepared.nodes, prepared.data->heap_bytes());
  facts.events = event_count(prepared.plan.placement);
  return facts;
}

// ---- The plan.

namespace {

/// Reads the plan from a file.
nn::PlanSource plan_of_file(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  if (options.setup.micro_batches == auto_micro_batches || options.costs.measures || !options.costs.times.empty()) {
    throw ValueError("`plan`: not with `micro_batches` auto, `measures` or `times`, which are about planning");
  }
  if (options.captures_steps)
    throw ValueError("`plan`: not with `captures_steps`, whose steps are placed in another way");
  const std::size_t steps = options.steps - prepared.first_step == 1 ? 1 : 2;
  return [path = options.plan, steps, may_pack = options.setup.packing.is_allowed](
             const nn::MakeRun& make, memory::Device device, const nn::MakeTier& make_tier) {
    nn::Plan plan = nn::read_plan(path, make, device, make_tier, steps);
    if (plan.packed_bytes == 0 || may_pack) return plan;
    throw ValueError("`plan`: '" + path + "' packs tensors, which rounds gradients; expected `allows_lossy` beside it");
  };
}

/// Bytes for measuring operators: the arena's budget, as far as it is known before the run is planned.
std::size_t measuring_bytes(const PreparedTraining& prepared) {
  const TrainOptions& options = prepared.options;
  if (options.process_budget_bytes == 0 || !options.costs.measures) return options.budget_bytes;
  const std::size_t left = nn::arena_budget(
      options.process_budget_bytes, memory::outside_bytes(memory::ProcessBase::measure(), outside_facts(prepared)));
  return options.budget_bytes > 0 ? std::min(options.budget_bytes, left) : left;
}

}  // namespace

void plan_training(PreparedTraining& prepared) {
  TrainOptions& options = prepared.options;
  const Tf32Scope products(options.allows_tf32);  // plans use its rate
  const Setup given = options.setup;
  check_process_budget(options);
  if (given.layout.ranks > 1 && options.captures_steps) {
    throw ValueError("`captures_steps`: not with `ranks` " + std::to_string(given.layout.ranks) +
                     "; expected one rank");
  }
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  const bool is_searched = has_budget && options.plan.empty();
  nn::TrainerOptions planning = planning_options(options, options.budget_bytes);
  planning.process_budget_bytes = options.process_budget_bytes;
  planning.captures_steps = options.captures_steps;
  if (!options.plan.empty()) planning.plan = plan_of_file(prepared);
  nn::CostModel costs(hardware_for(options.costs, options.device));
  if (is_searched) {
    costs = plan_costs(given, options.costs, measuring_bytes(prepared), options.device);
    prepared.cost_model = costs.source;
  }
  const RunOfSetup run_of = [&prepared](const Setup& setup) -> nn::MakeRun {
    TrainOptions other = prepared.options;
    other.setup = setup;
    return [&prepared, other = std::move(other)](memory::Device device) {
      return std::make_unique<Training>(other, *prepared.data, device, nn::Plan(), prepared.first_step);
    };
  };
  ChoiceOptions choices(options, costs, run_of);
  choices.captures_steps = options.captures_steps;
  if (is_searched && choices.progress) choices.progress("the smallest plan");
  std::optional<PlannedSetup> planned;
  const auto plan = [&] {
    try {
      planned.emplace(choices, given, planning, outside_facts(prepared));
      options.setup = planned->setup();
      planned->fit();
    } catch (const nn::BudgetError& error) {
      if (!is_searched || !planned || planned->plans().budget_bytes() == 0) throw;
      choices.budget_bytes = planned->plans().budget_bytes();
      throw nn::with_offers(error, offer_techniques(choices, options.setup));
    }
  };
  if (is_searched && options.device == cpu && given.layout.ranks == 1) {
    nn::plan_in_bound(options.process_budget_bytes, plan);
  } else {
    plan();
  }
  planned->plans().release_planners();
  options.budget_bytes = planned->plans().budget_bytes();
  prepared.plan = planned->plan();
  prepared.packing = packed_bytes_of(prepared.plan);
  prepared.nodes = planned->plans().node_count();
  if (is_searched) {
    const double plain_s = plain_step_seconds(choices, options.setup, planned->plans().kept_step_s());
    prepared.plan.time_overhead = prepared.plan.step_s / plain_s - 1;
  } else if (options.plan.empty() && !options.captures_steps) {
    prepared.is_steady = planned->plans().profile().is_steady;
  }
}

}  // namespace thimble::models
