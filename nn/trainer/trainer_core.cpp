#include <thimble/nn/trainer/trainer_core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::nn {
namespace trainer_core_detail {

CostModel costs_of(const TrainerOptions& options) {
  if (!options.hardware.empty()) return CostModel(hardware(options.hardware));
  if (!options.device.is_cuda() || options.device.is_dry) {
    return CostModel(hardware(options.device.is_cuda() ? "h100-80gb" : "cpu"));
  }
  return CostModel(hardware_of_gpu(kernels::device_runtime(options.device).devices().at(options.device.index).name));
}

}  // namespace trainer_core_detail

std::string TrainerPlan::text() const {
  std::string text = "peak " + memory::exact_bytes(peak_bytes);
  if (budget_bytes > 0) {
    text += " of a budget of " + memory::exact_bytes(budget_bytes) + "; keeping everything " +
            memory::exact_bytes(keep_everything_bytes);
  }
  text += "\n";
  for (const Shapes& shape : shapes) {
    for (const Part& part : shape.parts) {
      char overhead[32];
      std::snprintf(overhead, sizeof overhead, "%.1f", 100 * part.time_overhead);
      text += "  " + shape.key + (part.name.empty() ? "" : ", " + part.name) + ": " + overhead + " % more time\n";
    }
  }
  return text;
}

namespace trainer_detail {

TrainerCore::TrainerCore(std::unique_ptr<ErasedProgram> program, TrainerOptions options)
    : program_(std::move(program)), options_(std::move(options)), costs_(trainer_core_detail::costs_of(options_)) {
  check();
  machine_ = machine_text(options_.device);
  plan_.budget_bytes = options_.budget_bytes;
  for (const std::int64_t step : options_.example_steps) {
    Generator scratch(options_.seed);
    const GeneratorScope scope(scratch);
    require_planned(step, program_->key(step, dry(options_.device)));
  }
}

TrainerCore::~TrainerCore() = default;

void TrainerCore::check() const {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  const StepOptions& step = options_.step;
  if (options_.steps < 0) refuse(std::to_string(options_.steps) + " steps; at least 0");
  if (options_.evaluate_every < 0) refuse("an evaluation every " + std::to_string(options_.evaluate_every) + " steps");
  if (options_.device.is_dry) refuse("it trains on a real device; its plans are made on the dry twin");
  if (step.scaler != nullptr || step.seam != nullptr || step.gradient_tier || step.recording.plan ||
      step.recording.graph || step.recording.times || step.recording.watch) {
    refuse(
        "options.step has a scaler, a tier or a recording; clip_norm, micro-batches and fuses_optimizer are allowed");
  }
  if (step.micro_batches > 1 && !program_->cuts_batches())
    refuse("several micro-batches, and no micro_batch to cut them");
  if (options_.loss_scale && program_->part_names().size() > 1)
    refuse("a loss scale with several parts; one is allowed");
  if (options_.evaluate_every > 0 && !program_->evaluates()) refuse("evaluate_every without evaluate");
}

/// Whole steps with these batches; as planned, or without plans.
MakeRun TrainerCore::whole_steps(std::vector<std::int64_t> steps, bool is_planned) const {
  return [this, steps = std::move(steps), is_planned](Device device) {
    return std::make_unique<TrainerRun>(*program_, options_, device,
                                        RunRequest{steps, std::nullopt, is_planned ? &shapes_ : nullptr});
  };
}

MakeRun TrainerCore::part_steps(std::int64_t step, std::size_t part) const {
  return [this, step, part](Device device) {
    return std::make_unique<TrainerRun>(*program_, options_, device, RunRequest{{step}, part, nullptr});
  };
}

void TrainerCore::require_planned(std::int64_t step, const std::string& key) {
  const auto is_this = [&](const std::unique_ptr<ShapePlan>& shape) { return shape->key == key; };
  if (std::none_of(shapes_.begin(), shapes_.end(), is_this)) add_shape(step, key);
}

/// Plans for a new key. Where no plan fits, everything stays as it was.
void TrainerCore::add_shape(std::int64_t step, std::string key) {
  auto shape = std::make_unique<ShapePlan>();
  shape->key = std::move(key);
  shape->example_step = step;
  const std::size_t parts = program_->part_names().size();
  shape->parts.resize(parts);
  for (std::size_t part = 0; part < parts && options_.budget_bytes > 0; ++part) {
    shape->planners.push_back(
        std::make_unique<Planner>(part_steps(step, part), options_.device, costs_, options_.planner));
  }
  struct Before {
    std::vector<Plan> parts;
    std::vector<StepPlan> placement;
    std::size_t first_plan;
  };
  std::vector<Before> before;
  for (const auto& s : shapes_) before.push_back({s->parts, s->placement, s->first_plan});
  shapes_.push_back(std::move(shape));
  try {
    fit_all();
    if (stack_.placed) stack_.placed->set_plans(placements());
  } catch (...) {
    shapes_.pop_back();
    for (std::size_t i = 0; i < before.size(); ++i) {
      shapes_[i]->parts = std::move(before[i].parts);
      shapes_[i]->placement = std::move(before[i].placement);
      shapes_[i]->first_plan = before[i].first_plan;
    }
    throw;
  }
  describe();
}

/// Plans of every part of every key within so many bytes, each by itself. False where one has none.
bool TrainerCore::fit_parts(std::size_t target_bytes) {
  for (const auto& shape : shapes_) {
    for (std::size_t part = 0; part < shape->parts.size(); ++part) {
      try {
        shape->parts[part] = shape->planners[part]->fit(target_bytes);
      } catch (const BudgetError&) {
        return false;
      }
    }
  }
  return true;
}

void TrainerCore::fit_smallest() {
  for (const auto& shape : shapes_) {
    for (std::size_t part = 0; part < shape->parts.size(); ++part) {
      shape->parts[part] = shape->planners[part]->smallest();
    }
  }
}

/// Places the steps of all keys, and runs them dry in that placement: twice each, and what comes after them.
MemoryProfile TrainerCore::place_all() {
  const Device on = dry(options_.device);
  std::vector<std::int64_t> all_steps;
  std::size_t plans = 0;
  for (const auto& shape : shapes_) {
    const std::vector<std::int64_t> steps(2, shape->example_step);
    all_steps.insert(all_steps.end(), steps.begin(), steps.end());
    if (options_.budget_bytes == 0) continue;
    const MemoryProfile traced = profile_training(on, whole_steps(steps, true), 2, true);
    shape->placement = plan_steps(traced, placement_options(on, options_.step.micro_batches));
    shape->first_plan = plans;
    plans += shape->placement.size();
  }
  return profile_training(on, whole_steps(all_steps, true), all_steps.size(), false, placements());
}

std::vector<StepPlan> TrainerCore::placements() const {
  std::vector<StepPlan> all;
  for (const auto& shape : shapes_) all.insert(all.end(), shape->placement.begin(), shape->placement.end());
  return all;
}

/// All keys' plans in the budget. Parts are planned one by one; a step of all of them together, and with the plans of
/// other keys, may need a little more: then they are planned for that much less.
void TrainerCore::fit_all() {
  const std::size_t budget = options_.budget_bytes;
  if (budget == 0) {
    plan_.peak_bytes = place_all().peak_bytes;
    return;
  }
  constexpr int tries = 6;
  std::size_t target = budget;
  for (int i = 0; i < tries && fit_parts(target); ++i) {
    const std::size_t peak = place_all().peak_bytes;
    if (peak <= budget) {
      plan_.peak_bytes = peak;
      return;
    }
    target -= std::min(target, peak - budget);
  }
  fit_smallest();
  const std::size_t least = place_all().peak_bytes;
  if (least <= budget) {
    plan_.peak_bytes = least;
    return;
  }
  std::size_t kept = 0;
  for (const auto& shape : shapes_) {
    for (const auto& planner : shape->planners) kept = std::max(kept, planner->keep_everything().peak_bytes);
  }
  throw BudgetError("trainer: no plans of steps with " + shapes_.back()->key + " need as little as " +
                        memory::exact_bytes(budget) + "; the smallest need " + memory::exact_bytes(least) +
                        ", keeping everything " + memory::exact_bytes(kept),
                    budget, least);
}

void TrainerCore::describe() {
  plan_.shapes.clear();
  plan_.keep_everything_bytes = options_.budget_bytes == 0 ? plan_.peak_bytes : 0;
  const std::vector<std::string> names = program_->part_names();
  for (const auto& shape : shapes_) {
    TrainerPlan::Shapes of{shape->key, shape->example_step, {}};
    for (std::size_t part = 0; part < names.size(); ++part) {
      of.parts.push_back({names[part], shape->parts[part].description, shape->parts[part].time_overhead});
    }
    for (const auto& planner : shape->planners) {
      plan_.keep_everything_bytes = std::max(plan_.keep_everything_bytes, planner->keep_everything().peak_bytes);
    }
    plan_.shapes.push_back(std::move(of));
  }
}

void TrainerCore::start() {
  if (run_) return;
  memory::Options of_stack;
  of_stack.arena.capacity_bytes = options_.budget_bytes;
  of_stack.plans = placements();
  memory::Stack stack = memory::make_resource(options_.device, std::move(of_stack));
  if (stack.placed && options_.is_strict) stack.placed->set_strict(true);
  const ResourceScope scope(stack.top);
  run_ = std::make_unique<TrainerRun>(*program_, options_, options_.device, RunRequest{{}, std::nullopt, &shapes_});
  stack_ = std::move(stack);
}

ErasedRun& TrainerCore::live() {
  start();
  return run_->program();
}

Progress TrainerCore::step() {
  if (const std::string here = machine_text(options_.device); here != machine_) {
    throw PlanError("trainer: it was planned for '" + machine_ + "', here it is '" + here + "'");
  }
  start();
  const ResourceScope scope(stack_.top);
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t step = run_->steps();
  require_planned(step, run_->next_key());
  run_->step();
  Progress progress;
  progress.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  progress.step = step + 1;
  progress.losses = run_->losses();
  progress.loss = progress.losses.front();
  const std::int64_t every = options_.evaluate_every;
  const bool is_due = every > 0 ? progress.step % every == 0 : progress.step == options_.steps;
  if (is_due && program_->evaluates()) progress.evaluation = run_->evaluate();
  const Arena::Statistics arena = stack_.arena->statistics();
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  return progress;
}

void TrainerCore::run(const std::function<void(const Progress&)>& observer) {
  start();
  while (run_->steps() < options_.steps) {
    const Progress progress = step();
    if (observer) observer(progress);
  }
}

double TrainerCore::evaluate() {
  if (!program_->evaluates()) throw ValueError("trainer: the program has no evaluate");
  start();
  const ResourceScope scope(stack_.top);
  return run_->evaluate();
}

Certificate TrainerCore::certify(std::int64_t steps) {
  Generator scratch(options_.seed);
  const GeneratorScope scope(scratch);
  for (std::int64_t step = 0; step < steps; ++step) {
    require_planned(step, program_->key(step, dry(options_.device)));
  }
  Certificate certificate =
      nn::certify(whole_steps({}, false), whole_steps({}, true), options_.device, placements(), {.steps = steps});
  certificate.predicted_peak_bytes = plan_.peak_bytes;
  return certificate;
}

std::size_t TrainerCore::peak_bytes() const {
  return stack_.arena ? stack_.arena->statistics().peak_committed_bytes : 0;
}

Placed::Statistics TrainerCore::placed() const {
  return stack_.placed ? stack_.placed->statistics() : Placed::Statistics{};
}

}  // namespace trainer_detail
}  // namespace thimble::nn
