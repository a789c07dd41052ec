#include <thimble/models/planning/planning.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include <thimble/autograd/node.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/process/process.h>
#include <thimble/models/planning/planned_run.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/spilling.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/process_bytes.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/nn/fit/process_budget.h>

namespace thimble::models {
namespace planning_detail {

/// Peak of a forward without a tape.
nn::Plan inference_plan(const PlanOptions& options, PlanReport& report) {
  const nn::MemoryProfile profile = nn::profile_training(
      dry(options.device), options.is_int8 ? int8_inference_run(options.setup) : inference_run(options.setup));
  report.parameters = profile.parameters;
  nn::Plan plan;
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  report.committed = memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
  return plan;
}

/// What the peak of a training plan consists of: one more dry run.
memory::CommittedParts parts_of(const PlanReport& report, memory::Device device) {
  const auto run = [&](memory::Device on) {
    std::unique_ptr<nn::TrainingRun> made = report.run(on);
    report.plan.apply(made->options(), on);
    return made;
  };
  const nn::MemoryProfile profile = nn::profile_training(dry(device), run, 2, false, report.plan.placement);
  return memory::committed_parts(profile.peak_live_bytes, profile.peak_height_bytes, profile.peak_bytes);
}

/// Throws ValueError for what a forward has no use for.
void check_inference(const PlanOptions& options) {
  const Setup& s = options.setup;
  tensor_options(s, dry(options.device));
  refuse_training(s, "`is_inference`");
  if (!options.is_int8) return;
  if (s.sizes.feed_forward == FeedForward::tiled) {
    throw ValueError("`is_int8`: not with `feed_forward` tiled, whose products have no codes; expected full");
  }
  if (!s.precision.empty() && s.precision != "O0") {
    throw ValueError("`is_int8`: not with `precision` " + s.precision +
                     ", because the codes are made of a net in f32; expected O0, or no `precision`");
  }
  if (s.dtype != DType::f32) {
    throw ValueError("`is_int8`: not with `dtype` " + std::string(to_string(s.dtype)) +
                     ", because the codes are made of a net in f32; expected f32");
  }
}

/// The plan of a training step, for a report that has its budget.
void plan_training(const PlanOptions& options, const PlannedRuns& runs, const nn::CostModel& costs,
                   PlanReport& report) {
  Setup setup = options.setup;
  const RunOfSetup run_of = [&runs](const Setup& other) { return runs.of(other); };
  ChoiceOptions choices{{options.device, costs, report.budget_bytes}, run_of};
  choices.prices_away = options.prices_techniques;
  choices.begin_ms = process::processor_ms();
  choices.refusal_ms = options.refusal_ms;
  choices.progress = options.progress;
  if (choices.progress) choices.progress("the smallest plan");
  if (setup.micro_batches == auto_micro_batches) {
    const MicroBatchChoice choice = choose_micro_batches(choices, setup);
    setup.micro_batches = choice.count;
    report.planner = choice.planner;
  } else {
    report.planner =
        std::make_shared<nn::Planner>(run_of(setup), options.device, costs, planner_options(setup, options.device));
  }
  report.setup = setup;
  report.run = run_of(setup);
  report.micro_batches = setup.micro_batches;
  nn::Planner& planner = *report.planner;
  check_lossy(setup, options.device, planner.graph());
  report.parameters = planner.parameters();
  report.clip_norm = clip_norm(setup, make_model(setup.model, setup.sizes, {dry(cpu)})->is_text());
  report.minimum_bytes = planner.smallest().peak_bytes;
  report.keep_everything_bytes = planner.keep_everything().peak_bytes;
  report.plan = planner.keep_everything();
  if (report.budget_bytes == 0) {
    // Without a budget the run keeps the segments that the model names, which plans replace.
    const nn::MemoryProfile profile = nn::profile_training(dry(options.device), run_of(setup));
    report.plan.tape = nullptr;
    report.plan.peak_bytes = profile.peak_bytes;
    report.plan.lower_bound_bytes = profile.lower_bound_bytes;
    report.plan.peak_by_category = profile.peak_by_category;
  }
  report.plain_step_s = plain_step_seconds(choices, setup, planner);
  if (report.budget_bytes > 0) {
    try {
      report.plan = fit_in_budget(choices, setup, planner);
    } catch (const nn::BudgetError& error) {
      report.why_infeasible = error;
      report.is_feasible = false;
      report.plan = planner.smallest();
    }
  }
  report.plan.time_overhead = report.plan.step_s / report.plain_step_s - 1;
  report.packing = packed_bytes_of(report.plan);
  report.committed = parts_of(report, options.device);
  report.segments = nn::planned_segments(report.plan, planner.graph());
  if (options.prices_techniques) report.techniques = price_techniques(choices, setup);
  if (report.is_feasible) return;
  if (options.prices_techniques) choices.refusal_ms = 0;  // who asks for all of them has the time
  const nn::LeverOffers offers = offer_techniques(choices, setup);
  report.why_infeasible = nn::with_offers(report.why_infeasible, offers);
  report.known_techniques = offers.known;
  report.untried_techniques = offers.untried;
  if (options.prices_techniques) return;
  report.techniques.push_back({"", report.minimum_bytes, report.plan.time_overhead, {}, {}});
  report.techniques.insert(report.techniques.end(), offers.fitting.begin(), offers.fitting.end());
}

memory::OutsideBytes outside_of(const PlanOptions& options, const memory::ProcessBase& base, std::size_t nodes,
                                std::size_t data_bytes) {
  const bool has_budget = options.budget_bytes > 0 || options.process_budget_bytes > 0;
  return memory::outside_bytes(base, outside_facts(options.setup, has_budget, true, nodes, data_bytes));
}

/// The budget for the arena that one for the process leaves. The recording has as many nodes whatever the batch.
void fit_process(PlanOptions& options, PlanReport& report, const memory::ProcessBase& base) {
  if (options.device != cpu) {
    throw ValueError("`process_budget_bytes`: the host's bytes beside a " + to_string(options.device) +
                     " are not known; expected cpu");
  }
  if (options.setup.ranks > 1) {
    throw ValueError("`process_budget_bytes`: what " + std::to_string(options.setup.ranks) +
                     " ranks hold outside of their arenas is not known; expected `budget_bytes`, of each rank");
  }
  Setup setup = options.setup;
  if (setup.micro_batches == auto_micro_batches) setup.micro_batches = 1;
  const PlannedRuns runs(setup, options.device, options.data);
  const std::size_t nodes =
      options.is_inference ? 0 : nn::profile_training(dry(options.device), runs.of(setup), 1).nodes;
  memory::ProcessBase with_data = base;
  with_data.writable_bytes += runs.data_bytes();
  report.outside = outside_of(options, with_data, nodes, runs.data_bytes());
  report.process_budget_bytes = options.process_budget_bytes;
  const std::size_t left = nn::arena_budget(options.process_budget_bytes, report.outside);
  options.budget_bytes = options.budget_bytes > 0 ? std::min(options.budget_bytes, left) : left;
}

/// The setup with that many samples or tokens.
Setup with_size(Setup setup, Extent extent, std::int64_t size) {
  if (extent == Extent::batch) {
    setup.batch = whole_batch(setup, size);
  } else {
    setup.sizes.sequence = size;
  }
  return setup;
}

/// Of a model over tokens; else 0.
std::int64_t sequence_of(const Setup& setup) {
  return make_model(setup.model, setup.sizes, {dry(cpu)})->options().sequence;
}

/// Throws ValueError where the sequence of the setup's model cannot be searched for.
void require_sequence(const PlanOptions& options) {
  if (!make_model(options.setup.model, options.setup.sizes, {dry(cpu)})->is_text()) {
    throw ValueError("`finds_sequence`: " + options.setup.model + " is over images; expected a model over tokens");
  }
  if (!options.data.empty()) {
    throw ValueError("`finds_sequence`: not with `data`, which has its own sequences; leave out one of them");
  }
}

/// What a plan searches for; none: nothing. Throws ValueError.
std::optional<Extent> extent_of(const PlanOptions& options, std::size_t budget_bytes) {
  if (!options.finds_batch && !options.finds_sequence) return std::nullopt;
  const Extent extent = options.finds_batch ? Extent::batch : Extent::sequence;
  const std::string option = options.finds_batch ? "`finds_batch`" : "`finds_sequence`";
  if (options.finds_batch && options.finds_sequence) {
    throw ValueError(option + ": not with `finds_sequence`; leave out one of them");
  }
  if (budget_bytes == 0) {
    throw ValueError(option + ": no budget; `budget_bytes`, or `hardware` with a memory, is needed");
  }
  if (options.setup.micro_batches == auto_micro_batches) {
    throw ValueError(option + ": not with `micro_batches` auto; expected a number of them");
  }
  return extent;
}

}  // namespace planning_detail

Largest find_largest(const PlanOptions& given, std::size_t budget_bytes, BatchSearch search, Extent extent) {
  const Tf32Scope products(given.allows_tf32);
  PlanOptions options = given;
  if (extent == Extent::sequence) planning_detail::require_sequence(options);
  const PlannedRuns runs(options.setup, options.device, options.data);
  std::map<std::int64_t, double> overheads;
  const auto planner = [&](std::int64_t size) {
    const Setup setup = planning_detail::with_size(options.setup, extent, size);
    return nn::Planner(runs.of(setup), options.device, hardware_for(options.costs, options.device),
                       planner_options(setup, options.device));
  };
  if (search == BatchSearch::in_a_third && !options.is_inference) {
    return search_in_a_third(planner, budget_bytes);
  }
  const auto peak = [&](std::int64_t size) -> std::size_t {
    const Setup setup = planning_detail::with_size(options.setup, extent, size);
    if (options.is_inference) {
      PlanOptions forward = options;
      forward.setup = setup;
      PlanReport unused;
      return planning_detail::inference_plan(forward, unused).peak_bytes;
    }
    if (search == BatchSearch::plain) return nn::profile_training(dry(options.device), runs.of(setup)).peak_bytes;
    nn::Planner plans = planner(size);
    const nn::Plan& plan = plans.smallest();
    overheads[size] = plan.time_overhead;
    return plan.peak_bytes;
  };
  Largest found = search_largest(peak, budget_bytes, extent);
  found.time_overhead = overheads[found.size];
  return found;
}

std::int64_t largest_batch(const PlanOptions& options, std::size_t budget_bytes) {
  return find_largest(options, budget_bytes, BatchSearch::planned).size;
}

std::int64_t longest_sequence(const PlanOptions& options, std::size_t budget_bytes) {
  return find_largest(options, budget_bytes, BatchSearch::planned, Extent::sequence).size;
}

PlanReport make_plan(const PlanOptions& given) {
  auto start = std::chrono::steady_clock::now();
  check_tf32(given.allows_tf32, given.device);
  const Tf32Scope products(given.allows_tf32);
  PlanOptions options = given;
  const nn::Hardware machine = hardware_for(options.costs, options.device);
  PlanReport report;
  memory::ProcessBase base;
  if (options.device == cpu) base = memory::ProcessBase::measure();
  if (options.process_budget_bytes > 0) planning_detail::fit_process(options, report, base);
  report.budget_bytes = options.budget_bytes > 0 ? options.budget_bytes : machine.memory_bytes;
  if (const auto extent = planning_detail::extent_of(options, report.budget_bytes)) {
    const std::int64_t size = find_largest(options, report.budget_bytes, BatchSearch::planned, *extent).size;
    options.setup = planning_detail::with_size(options.setup, *extent, size);
  }
  const PlannedRuns runs(options.setup, options.device, options.data);
  check_weights(options.setup);
  report.setup = options.setup;
  report.batch = options.setup.batch;
  report.sequence = planning_detail::sequence_of(options.setup);
  report.micro_batches = options.setup.micro_batches;
  report.cost_model = nn::CostModel(machine).source;
  if (options.is_inference) {
    if (options.prices_techniques) {
      throw ValueError("`is_inference`: not with `prices_techniques`, which are about training steps");
    }
    planning_detail::check_inference(options);
    report.plan = planning_detail::inference_plan(options, report);
    report.minimum_bytes = report.keep_everything_bytes = report.plan.peak_bytes;
    if (report.budget_bytes > 0 && report.plan.peak_bytes > report.budget_bytes) {
      report.is_feasible = false;
      report.why_infeasible = nn::BudgetError("plan: a forward needs " + std::to_string(report.plan.peak_bytes) +
                                                  " bytes, the budget is " + std::to_string(report.budget_bytes),
                                              report.budget_bytes, report.plan.peak_bytes);
    }
  } else {
    const nn::CostModel costs = plan_costs(options.setup, options.costs, report.budget_bytes, options.device);
    start = std::chrono::steady_clock::now();
    report.cost_model = costs.source;
    planning_detail::plan_training(options, runs, costs, report);
  }
  if (options.device == cpu && options.setup.ranks == 1 && report.outside.total() == 0) {
    base.writable_bytes += runs.data_bytes();
    const std::size_t nodes = report.planner ? report.planner->graph().nodes.size() : 0;
    report.outside = planning_detail::outside_of(options, base, nodes, runs.data_bytes());
  }
  if (!report.is_feasible && report.process_budget_bytes > 0) {
    report.why_infeasible = nn::of_process(report.why_infeasible, report.process_budget_bytes, report.outside);
  }
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace thimble::models
