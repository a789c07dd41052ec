#include <thimble/nn/trainer/trainer_core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/nn/files/checkpoint.h>
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
  check_files();
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
  if (step.scaler != nullptr || step.judge != nullptr || step.gradient_tier || step.recording.plan ||
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

/// What is written and read is tried before anything is planned.
void TrainerCore::check_files() {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  if (options_.save_every < 0) refuse("a checkpoint every " + std::to_string(options_.save_every) + " steps");
  if (options_.keep < 1) refuse("keep = " + std::to_string(options_.keep) + "; at least 1 checkpoint stays");
  if (options_.save.empty() && options_.save_every > 0) refuse("save_every without save");
  if (options_.save.empty() && options_.resume.empty()) return;
  const Device on = dry(options_.device);
  const memory::Stack stack = memory::make_resource(on);
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, {});
  const std::size_t parts = program_->part_names().size(), modules = run.program().modules().size();
  if (parts > 1 || modules > 1) {
    refuse("save and resume of a program with " + std::to_string(parts) + " parts and " + std::to_string(modules) +
           " modules; one of each is allowed");
  }
  if (!options_.resume.empty()) {
    run.load(options_.resume);
    const CheckpointInfo info = parse_checkpoint_info(SafetensorsReader(options_.resume).header(), options_.resume);
    if (info.seed != options_.seed) {
      refuse("resume: '" + options_.resume + "' was trained with seed " + std::to_string(info.seed) +
             "; the same is allowed, not " + std::to_string(options_.seed));
    }
    first_step_ = info.step_count + (info.scaler ? info.scaler->skipped_steps : 0);
    if (first_step_ >= options_.steps) {
      refuse("resume: '" + options_.resume + "' has done " + std::to_string(first_step_) +
             " steps; steps = " + std::to_string(options_.steps) + " must be more (it counts from the start)");
    }
  }
  check_keeping("trainer: save", {options_.save, options_.keep}, options_.steps, options_.save_every,
                checkpoint_bytes(*run.program().modules().front(), run.program().optimizer(0)));
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
    std::vector<StepPlacement> placement;
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

std::vector<StepPlacement> TrainerCore::placements() const {
  std::vector<StepPlacement> all;
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
  auto run = std::make_unique<TrainerRun>(*program_, options_, options_.device, RunRequest{{}, std::nullopt, &shapes_},
                                          first_step_);
  if (!options_.resume.empty()) run->load(options_.resume);
  run_ = std::move(run);
  stack_ = std::move(stack);
}

TrainerRun& TrainerCore::started() {
  start();
  return *run_;
}

ErasedRun& TrainerCore::live() {
  start();
  return run_->program();
}

void TrainerCore::train_step(Progress& progress) {
  if (const std::string here = machine_text(options_.device); here != machine_) {
    throw PlanError("trainer: it was planned for '" + machine_ + "', here it is '" + here + "'");
  }
  TrainerRun& run = started();
  const ResourceScope scope(stack_.top);
  require_planned(run.steps(), run.next_key());
  run.step();
  progress.step = run.steps();
  progress.losses = run.losses();
  progress.loss = progress.losses.front();
  progress.rate = run.program().optimizer(0).rate();
}

Progress TrainerCore::step() {
  Progress progress;
  const auto begin = std::chrono::steady_clock::now();
  train_step(progress);
  progress.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const std::int64_t every = options_.evaluate_every;
  const bool is_due = every > 0 ? progress.step % every == 0 : progress.step == options_.steps;
  if (is_due && program_->evaluates()) progress.evaluation = Evaluation{evaluate(), std::nullopt};
  const Arena::Statistics arena = stack_.arena->statistics();
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  return progress;
}

namespace looped_detail {

class LoopedTrainer final : public LoopedRun {
 public:
  LoopedTrainer(TrainerCore& core, bool evaluates) : core_(core), evaluates_(evaluates) {}

  void train_step(std::int64_t, Progress& progress) override { core_.train_step(progress); }
  std::optional<Evaluation> evaluate() override {
    return evaluates_ ? std::optional(Evaluation{core_.evaluate(), std::nullopt}) : std::nullopt;
  }
  void write_checkpoint(const std::string& path) override { core_.save(path); }
  std::int64_t steps_done() override { return core_.started().steps(); }
  std::int64_t skipped_steps() override {
    const optim::GradScaler* const scaler = core_.started().scaler();
    return scaler != nullptr ? scaler->state().skipped_steps : 0;
  }

 private:
  TrainerCore& core_;
  bool evaluates_;
};

}  // namespace looped_detail

LoopReport TrainerCore::run(const TrainObserver& observer, const TrainControl& control) {
  start();
  const LoopOptions loop_options{.first_step = run_->steps(),
                                 .steps = options_.steps,
                                 .evaluate_every = options_.evaluate_every,
                                 .save = options_.save,
                                 .save_every = options_.save_every,
                                 .keep = options_.keep,
                                 .resume = options_.resume,
                                 .resumed_steps = first_step_,
                                 .log = options_.log};
  LoopReport report;
  looped_detail::LoopedTrainer run(*this, program_->evaluates());
  TrainingLoop loop(run, loop_options, stack_, report, control);
  loop.run(observer);
  loop.rethrow_failed_save();
  return report;
}

void TrainerCore::save(const std::string& path) {
  TrainerRun& run = started();
  const ResourceScope scope(stack_.top);
  run.save(path);
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

PlacedArena::Statistics TrainerCore::placed() const {
  return stack_.placed ? stack_.placed->statistics() : PlacedArena::Statistics{};
}

}  // namespace trainer_detail
}  // namespace thimble::nn
