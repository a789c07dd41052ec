// The plan of a named model's run, its training and report, and its comparison with runs without the plan.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/choices.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/nn/fit/process_budget.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::models {

memory::OutsideFacts Engine::outside_facts() {
  plan();
  return known_facts();
}

/// Of the plan, if there is one.
memory::OutsideFacts Engine::known_facts() const {
  // A checkpoint is written straight from its tensors. Reading checks, and writing for other programs transposes, both
  // through a staging buffer.
  const bool has_files = !options_.resume.empty() || !options_.save_weights.empty() ||
                         !options_.setup.weights.empty() || !options_.save_adapters.empty();
  const bool has_budget = options_.budget_bytes > 0 || options_.process_budget_bytes > 0;
  memory::OutsideFacts facts =
      models::outside_facts(options_.setup, has_budget, has_files, plan_.nodes, data_->heap_bytes());
  facts.events = event_count(plan_.placement);
  return facts;
}

/// Reads the plan from a file.
nn::PlanSource Engine::plan_of_file() const {
  if (options_.setup.micro_batches == auto_micro_batches || options_.costs.measures || !options_.costs.times.empty()) {
    throw ValueError("`plan`: not with `micro_batches` auto, `measures` or `times`, which are about planning");
  }
  if (options_.captures_steps)
    throw ValueError("`plan`: not with `captures_steps`, whose steps are placed in another way");
  const std::size_t steps = options_.steps - first_step_ == 1 ? 1 : 2;
  return [path = options_.plan, steps, may_pack = options_.setup.packing.is_allowed](
             const nn::MakeRun& make, memory::Device device, const nn::MakeTier& make_tier) {
    nn::Plan plan = nn::read_plan(path, make, device, make_tier, steps);
    if (plan.packed_bytes == 0 || may_pack) return plan;
    throw ValueError("`plan`: '" + path + "' packs tensors, which rounds gradients; expected `allows_lossy` beside it");
  };
}

/// Bytes for measuring operators: the arena's budget, as far as it is known before the run is planned.
std::size_t Engine::measuring_bytes() const {
  if (options_.process_budget_bytes == 0 || !options_.costs.measures) return options_.budget_bytes;
  const std::size_t left = nn::arena_budget(options_.process_budget_bytes,
                                            memory::outside_bytes(memory::ProcessBase::measure(), known_facts()));
  return options_.budget_bytes > 0 ? std::min(options_.budget_bytes, left) : left;
}

const RunPlan& Engine::plan() {
  if (is_planned_) return plan_;
  if (!is_compared_) require_alike();
  make_plan();
  options_.progress = nullptr;
  is_planned_ = true;
  return plan_;
}

void Engine::follow(nn::Plan plan) {
  static_cast<nn::Plan&>(plan_) = std::move(plan);
  is_planned_ = true;
}

void Engine::make_plan() {
  const Tf32Scope products(options_.allows_tf32);  // plans use its rate
  const Setup& given = options_.setup;
  check_process_budget(options_);
  if (given.layout.ranks > 1 && options_.captures_steps) {
    throw ValueError("`captures_steps`: not with `ranks` " + std::to_string(given.layout.ranks) +
                     "; expected one rank");
  }
  const bool has_budget = options_.budget_bytes > 0 || options_.process_budget_bytes > 0;
  const bool is_searched = has_budget && options_.plan.empty();
  nn::TrainerOptions planning = planning_options(options_, options_.budget_bytes);
  planning.process_budget_bytes = options_.process_budget_bytes;
  planning.captures_steps = options_.captures_steps;
  if (!options_.plan.empty()) planning.plan = plan_of_file();
  RunPlan made;
  nn::CostModel costs(hardware_for(options_.costs, options_.device));
  if (is_searched) {
    costs = plan_costs(given, options_.costs, measuring_bytes(), options_.device);
    made.cost_model = costs.source;
  }
  const RunOfSetup run_of = [this](const Setup& setup) -> nn::MakeRun {
    RunOptions other = options_;
    other.setup = setup;
    return [this, other = std::move(other)](memory::Device device) {
      return std::make_unique<Training>(other, *data_, device, nn::Plan(), first_step_);
    };
  };
  ChoiceOptions choices(options_, costs, run_of);
  choices.captures_steps = options_.captures_steps;
  if (is_searched && choices.progress) choices.progress("the smallest plan");
  std::optional<PlannedSetup> planned;
  const auto plan = [&] {
    try {
      planned.emplace(choices, given, planning, known_facts());
      planned->fit();
    } catch (const nn::BudgetError& error) {
      if (!is_searched || !planned || planned->plans().budget_bytes() == 0) throw;
      choices.budget_bytes = planned->plans().budget_bytes();
      throw nn::with_offers(error, offer_techniques(choices, planned->setup()));
    }
  };
  if (is_searched && options_.device == cpu && given.layout.ranks == 1) {
    nn::plan_in_bound(options_.process_budget_bytes, plan);
  } else {
    plan();
  }
  planned->plans().release_planners();
  static_cast<nn::Plan&>(made) = planned->plan();
  made.packing = packed_bytes_of(made);
  made.nodes = planned->plans().node_count();
  if (is_searched) {
    const double plain_s = plain_step_seconds(choices, planned->setup(), planned->plans().kept_step_s());
    made.time_overhead = made.step_s / plain_s - 1;
  } else if (options_.plan.empty() && !options_.captures_steps) {
    made.is_steady = planned->plans().profile().is_steady;
  }
  options_.setup = planned->setup();
  options_.budget_bytes = planned->plans().budget_bytes();
  plan_ = std::move(made);
}

TrainReport Engine::run(const nn::TrainObserver& observer, const TrainWatcher& watcher,
                        const nn::TrainControl& control) {
  plan();
  const Setup& setup = options_.setup;
  TrainReport report;
  report.predicted_peak_bytes = plan_.peak_bytes;
  report.time_overhead = plan_.time_overhead;
  report.cost_model = plan_.cost_model;
  report.offloaded_bytes = plan_.offloaded_bytes;
  report.packing = plan_.packing;
  report.predicted_tier_bytes = plan_.tier_bytes;
  report.first_step = first_step_;
  report.clip_norm = clip_norm(setup, is_text_);
  const nn::TrainerOptions chosen = trainer_options(options_, options_.device);
  nn::RunNeed need{options_.budget_bytes, plan_.peak_bytes, plan_.placement, std::nullopt, true};
  if (setup.layout.ranks == 1) need.outside = known_facts();
  const nn::RunArena arena(chosen, std::move(need));
  if (watcher) watcher(arena.stack());
  const ResourceScope scope(arena.stack().top);
  const Tf32Scope products(options_.allows_tf32);
  const auto training =
      arena.start([&] { return std::make_unique<Training>(options_, *data_, options_.device, plan_, first_step_); });
  report.parameters = training->model().parameter_count();
  for (const nn::Named& p : training->model().trainable()) report.trained_parameters += p.tensor.elements();
  report.optimizer = training->optimizer().name();
  report.full_state = training->optimizer().kept_full();
  const nn::LoopOptions looped{.resumed_steps = first_step_,
                               .items_per_step = static_cast<double>(setup.batch * data_->items_per_sample()),
                               .ranks = setup.layout.ranks > 1 ? options_.ranks : nullptr};
  arena.run(*training, looped, observer, control, report);
  if (!training->sample().empty()) report.sample = data_->decode(training->sample());
  training->rest();
  arena.measure(*training, looped.ranks, report);
  return report;
}

// ---- Comparisons.

nn::Certificate Engine::certify() {
  if (options_.setup.packing.is_allowed) {
    throw ValueError("certify: `allows_lossy` rounds gradients, so bits differ; leave it out");
  }
  plan();
  if (options_.budget_bytes == 0 && options_.plan.empty()) {
    throw ValueError("certify: no plan to hold against the plain run; `budget_bytes` or `plan` is needed");
  }
  const Tf32Scope products(options_.allows_tf32);
  const nn::Plan everything_kept;
  nn::Certificate certificate = nn::certify(runs(everything_kept), runs(), options_.device, plan_.placement,
                                            {.steps = options_.steps, .finishes = true});
  certificate.predicted_peak_bytes = plan_.peak_bytes;
  return certificate;
}

namespace {

/// The plan without packing: it keeps the packed tensors as they are.
std::shared_ptr<const TapePlan> without_packing(const std::shared_ptr<const TapePlan>& plan) {
  if (!plan) return nullptr;
  auto exact = std::make_shared<TapePlan>(*plan);
  std::erase_if(exact->spills, [](const TapePlan::Spill& s) { return s.form == TapePlan::Spill::Form::pack; });
  return exact;
}

bool is_finite(const nn::GradientReport& report) {
  return std::isfinite(report.all.norm) && !std::isnan(report.all.relative_error);
}

}  // namespace

nn::GradientReport Engine::packing_gradients() {
  plan();
  RunOptions options = options_;
  options.captures_steps = false;
  const memory::Stack stack = memory::make_resource(options.device);
  const ResourceScope scope(stack.top);
  const Tf32Scope products(options.allows_tf32);
  nn::Plan plan = plan_;
  plan.placement.clear();
  Training training(options, *data_, options.device, plan);
  if (!options.resume.empty()) training.load(options.resume);
  const Batch batch = data_->batch(first_step_, options.device, options.setup.precision.dtype);
  const nn::StepOptions& step = training.options();
  optim::RecordingOptions exact = step.recording;
  exact.plan = without_packing(step.recording.plan);
  const auto loss_of = [&](std::int64_t i) { return training.model().loss(micro_batch(batch, i, step.micro_batches)); };
  double scale = training.scaler() != nullptr ? training.scaler()->scale() : 1;
  while (true) {
    nn::GradientReport report = nn::compare_gradients(
        training.optimizer().parameters(), loss_of, exact, step.recording, step.micro_batches, step.micro_samples,
        training.scaler() != nullptr ? std::optional(scale) : std::nullopt, micro_batches(batch, step.micro_batches));
    const bool may_halve = training.scaler() != nullptr && training.scaler()->options().is_dynamic && scale > 1;
    if (!may_halve || is_finite(report)) return report;
    scale /= 2;
  }
}

}  // namespace thimble::models
