#include <thimble/bench/planning.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include <thimble/autograd/node.h>
#include <thimble/core/context.h>
#include <thimble/core/error.h>

namespace thimble::bench {
namespace planning_detail {

constexpr std::int64_t most_samples = std::int64_t{1} << 24;

std::vector<PlannedSegment> segments_of(const nn::Plan& plan, const TapeGraph& graph) {
  std::vector<PlannedSegment> list;
  if (!plan.tape) return list;
  const std::vector<std::int32_t> innermost = plan.tape->innermost();
  for (std::size_t s = 0; s < plan.tape->segments.size(); ++s) {
    const TapePlan::Segment& segment = plan.tape->segments[s];
    PlannedSegment planned;
    planned.first = segment.first, planned.end = segment.end;
    for (std::int32_t p = segment.parent; p != TapePlan::none;
         p = plan.tape->segments[static_cast<std::size_t>(p)].parent) {
      ++planned.depth;
    }
    planned.path = path_name(graph.nodes[segment.first].path);
    for (std::uint32_t n = segment.first; n < segment.end; ++n) {
      if (innermost[n] != static_cast<std::int32_t>(s)) continue;
      const TapeGraph::Node& node = graph.nodes[n];
      const Fate fate = plan.tape->fates[n];
      const bool is_view = node.type->cost == Cost::view;
      if (keeps_output(fate) && !is_view) planned.kept_bytes += graph.bytes_of(node.output);
      if (!keeps_output(fate)) ++planned.dropped;
      if (!keeps_saved(fate)) continue;
      for (const std::uint32_t value : node.saved) {
        const bool is_operand = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
        if (!is_operand && value != node.output) planned.kept_bytes += graph.bytes_of(value);
      }
    }
    list.push_back(std::move(planned));
  }
  return list;
}

/// Peak of a forward without a tape.
nn::Plan inference_plan(const Setup& setup, std::int64_t& parameters) {
  const nn::MemoryProfile profile = nn::profile_training(dry(cpu), inference_run(setup));
  parameters = profile.parameters;
  nn::Plan plan;
  plan.peak_bytes = profile.peak_bytes;
  plan.lower_bound_bytes = profile.lower_bound_bytes;
  plan.peak_by_category = profile.peak_by_category;
  return plan;
}

/// The smallest peak with a batch of this size.
std::size_t smallest_peak(PlanOptions options, std::int64_t batch) {
  options.setup.batch = batch;
  std::int64_t parameters = 0;
  if (options.is_inference) return inference_plan(options.setup, parameters).peak_bytes;
  return nn::Planner(training_run(options.setup), cpu, nn::hardware(options.hardware)).smallest().peak_bytes;
}

}  // namespace planning_detail

std::int64_t largest_batch(const PlanOptions& options, std::size_t budget_bytes) {
  using planning_detail::smallest_peak;
  const std::size_t one = smallest_peak(options, 1);
  if (one > budget_bytes) {
    throw nn::BudgetError("--max-batch: a batch of 1 needs " + std::to_string(one) +
                              " bytes, more than the budget of " + std::to_string(budget_bytes),
                          budget_bytes, one);
  }
  std::int64_t fits = 1, fails = 2;
  while (fails <= planning_detail::most_samples && smallest_peak(options, fails) <= budget_bytes) {
    fits = fails;
    fails *= 2;
  }
  while (fails - fits > 1) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    (smallest_peak(options, middle) <= budget_bytes ? fits : fails) = middle;
  }
  return fits;
}

PlanReport make_plan(const PlanOptions& given) {
  const auto start = std::chrono::steady_clock::now();
  PlanOptions options = given;
  const nn::Hardware& machine = nn::hardware(options.hardware);
  PlanReport report;
  report.budget_bytes = options.budget_bytes > 0 ? options.budget_bytes : machine.memory_bytes;
  report.cost_model = machine.name + ": " + machine.description;
  if (options.finds_batch) {
    if (report.budget_bytes == 0)
      throw ValueError("--max-batch: no budget; --budget, or --hardware with a memory, is needed");
    options.setup.batch = largest_batch(options, report.budget_bytes);
  }
  report.batch = options.setup.batch;
  if (options.is_inference) {
    report.plan = planning_detail::inference_plan(options.setup, report.parameters);
    report.minimum_bytes = report.keep_everything_bytes = report.plan.peak_bytes;
    if (report.budget_bytes > 0 && report.plan.peak_bytes > report.budget_bytes) {
      report.is_feasible = false;
      report.why_infeasible = nn::BudgetError("plan: a forward needs " + std::to_string(report.plan.peak_bytes) +
                                                  " bytes, the budget is " + std::to_string(report.budget_bytes),
                                              report.budget_bytes, report.plan.peak_bytes);
    }
  } else {
    report.planner = std::make_shared<nn::Planner>(training_run(options.setup), cpu, machine);
    nn::Planner& planner = *report.planner;
    report.parameters = planner.parameters();
    report.minimum_bytes = planner.smallest().peak_bytes;
    report.keep_everything_bytes = planner.keep_everything().peak_bytes;
    report.plan = planner.keep_everything();
    if (report.budget_bytes > 0) {
      try {
        report.plan = planner.fit(report.budget_bytes);
      } catch (const nn::BudgetError& error) {
        report.is_feasible = false;
        report.why_infeasible = error;
        report.plan = planner.smallest();
      }
    }
    report.segments = planning_detail::segments_of(report.plan, planner.graph());
  }
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace thimble::bench
