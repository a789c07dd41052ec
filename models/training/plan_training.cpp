// Before the first step: how the run is planned, in a child process where it has the process for itself.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

#include <thimble/autograd/spare_tape.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/core/tensor/recycled.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/process/child_process.h>
#include <thimble/memory/process/heap_bound.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/planning/capture.h>
#include <thimble/models/planning/choices.h>
#include <thimble/models/planning/spilling.h>
#include <thimble/models/training/process_bytes.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>

namespace thimble::models {
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
                     "' packs tensors, which rounds gradients; with `allows_lossy` it is allowed");
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
  const std::size_t budget = prepared.options.budget_bytes;
  // The program reads its setup from `prepared`, which has no plan of its own to follow until the end of this.
  const auto run_of = [&prepared](const Setup& other) -> nn::MakeRun {
    return [&prepared, other](Device device) {
      prepared.options.setup = other;
      return training_program(prepared)(device);
    };
  };
  const nn::CostModel costs = plan_costs(setup, prepared.options.costs, budget, prepared.options.device);
  prepared.cost_model = costs.source;
  ChoiceOptions choices{run_of, prepared.options.device, costs, budget, prepared.options.captures_steps};
  choices.begin_ms = process::processor_ms();
  choices.refusal_ms = prepared.options.refusal_ms;
  choices.progress = prepared.options.progress;
  if (choices.progress) choices.progress("the smallest plan");
  Setup chosen = setup;
  std::shared_ptr<nn::Planner> planner;
  if (setup.micro_batches == auto_micro_batches) {
    const MicroBatchChoice choice = choose_micro_batches(choices, chosen);
    chosen.micro_batches = choice.count;
    planner = choice.planner;
  } else {
    planner = std::make_shared<nn::Planner>(run_of(chosen), prepared.options.device, costs,
                                            planner_options(chosen, prepared.options.device));
  }
  setup = chosen;
  check_lossy(setup, prepared.options.device, planner->graph());
  prepared.nodes = planner->graph().nodes.size();
  nn::Plan plan;
  try {
    plan =
        prepared.options.captures_steps ? fit_captured(*planner, prepared) : fit_in_budget(choices, chosen, *planner);
  } catch (const nn::BudgetError& error) {
    planner.reset();  // the others need its bytes
    throw with_offers(error, offer_techniques(choices, chosen));
  }
  plan.time_overhead = plan.step_s / plain_step_seconds(choices, chosen, *planner) - 1;
  prepared.packing = packed_bytes_of(plan);
  prepared.plan = std::move(plan);
  setup = chosen;
}

/// Planning found no room.
[[noreturn]] void refuse_planning(const TrainOptions& options, std::size_t room, const std::string& why) {
  const std::size_t budget = options.process_budget_bytes;
  throw OutOfMemory("planning: " + why + " of " + memory::exact_bytes(room) +
                        (budget > 0 ? ", which `process_budget_bytes` " + memory::exact_bytes(budget) +
                                          " or a limit of the machine leaves beside code"
                                    : ", which a limit of the machine leaves") +
                        "; a plan that was made elsewhere (`plan --save`) is followed in less (`plan`)",
                    {.requested_bytes = room + 1, .capacity_bytes = room});
}

/// The same in a child process, whose planners leave nothing on this one's heap: what they hold while they search would
/// count as outside of the arena for as long as this process lives. Meanwhile the child holds no more than the process
/// may and its limits allow. False where planning here says why there is no plan. Throws BudgetError, OutOfMemory.
bool plan_in_child(PreparedTraining& prepared) {
  std::size_t room = memory::heap_room(true);
  if (const std::size_t budget = prepared.options.process_budget_bytes; budget > 0) {
    room = std::min(room, budget - std::min(budget, process::file_mapped_bytes()));
  }
  int signal = 0;
  const std::optional<std::string> made = memory::in_child_process(
      [&prepared, room]() -> std::string {
        const memory::HeapBound bound(room);
        try {
          plan_in_budget(prepared);
          return "plan " + std::to_string(prepared.options.setup.micro_batches) + " " + std::to_string(prepared.nodes) +
                 " " + prepared.cost_model + "\n" + nn::plan_to_json(prepared.plan);
        } catch (const nn::BudgetError& error) {
          return "budget " + std::to_string(error.budget_bytes()) + " " + std::to_string(error.minimum_bytes()) + " " +
                 error.what();
        } catch (const std::bad_alloc&) {
          return "memory";
        } catch (const OutOfMemory&) {
          return "memory";
        }
      },
      &signal);
  if (signal == SIGKILL) refuse_planning(prepared.options, room, "the system ended it within its bound");
  if (!made) return false;
  if (*made == "memory") refuse_planning(prepared.options, room, "it needs more than its bound");
  char* rest = nullptr;
  const bool is_plan = made->starts_with("plan ");
  const auto first = std::strtoull(made->c_str() + made->find(' '), &rest, 10);
  const auto second = std::strtoull(rest, &rest, 10);
  const auto text = static_cast<std::size_t>(rest + 1 - made->c_str());
  if (!is_plan) throw nn::BudgetError(made->substr(text), first, second);
  const std::size_t end = made->find("\n{");
  Setup& setup = prepared.options.setup;
  setup.micro_batches = static_cast<std::int64_t>(first);
  prepared.nodes = second;
  prepared.cost_model = made->substr(text, end - text);
  prepared.plan =
      nn::plan_from_json(std::string_view(*made).substr(end + 1), "of a child process", training_program(prepared),
                         prepared.options.device, planner_options(setup, prepared.options.device).make_tier);
  prepared.packing = packed_bytes_of(prepared.plan);
  return true;
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
    } else if (!prepared.options.plans_in_child || !detail::plan_in_child(prepared)) {
      detail::plan_in_budget(prepared);
    }
    detail::release_rooms();
    prepared.plan = nn::Plan(std::as_const(prepared.plan));  // the planner has freed what lies below: a copy lies lower
  };
  const int ranks = prepared.options.setup.ranks;
  if (ranks > 1 && prepared.options.process_budget_bytes > 0) {
    throw ValueError("`process_budget_bytes`: what " + std::to_string(ranks) +
                     " ranks hold outside of their arenas is not known; `budget_bytes`, of each rank, is allowed");
  }
  if (ranks > 1 && prepared.options.costs.measures) {
    throw ValueError("`measures`: not with `ranks` " + std::to_string(ranks) +
                     ", which would measure other times and follow other plans; `times` is allowed");
  }
  if (ranks > 1 && prepared.options.captures_steps) {
    throw ValueError("`captures_steps`: not with `ranks` " + std::to_string(ranks) + "; one rank is allowed");
  }
  if (prepared.options.process_budget_bytes > 0) {
    if (prepared.options.device != cpu) {
      throw ValueError("`process_budget_bytes`: the host's bytes beside a " + to_string(prepared.options.device) +
                       " are not known; cpu is allowed");
    }
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
