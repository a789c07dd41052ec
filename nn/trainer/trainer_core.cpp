#include <thimble/nn/trainer/trainer_core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/fit/process_budget.h>
#include <thimble/nn/fit/segments.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::nn {
namespace {

CostModel costs_of(const TrainerOptions& options) {
  if (!options.hardware.empty()) return CostModel(hardware(options.hardware));
  if (!options.device.is_cuda() || options.device.is_dry) {
    return CostModel(hardware(options.device.is_cuda() ? "h100-80gb" : "cpu"));
  }
  return CostModel(hardware_of_gpu(kernels::device_runtime(options.device).devices().at(options.device.index).name));
}

}  // namespace

int RankOptions::data_ranks() const noexcept {
  return ranks == nullptr ? 1 : std::max(1, ranks->size() / tensor_parallel);
}

std::int64_t TrainerOptions::all_micro_batches() const noexcept { return step.micro_batches * ranks.data_ranks(); }

std::string TrainerPlan::text() const {
  std::string text = "peak " + memory::exact_bytes(peak_bytes);
  for (std::size_t rank = 0; rank < rank_peak_bytes.size(); ++rank) {
    text +=
        (rank == 0 ? " (rank 0: " : ", " + std::to_string(rank) + ": ") + memory::exact_bytes(rank_peak_bytes[rank]);
  }
  if (!rank_peak_bytes.empty()) text += ")";
  if (budget_bytes > 0) {
    text += " of a budget of " + memory::exact_bytes(budget_bytes);
    if (keep_everything_bytes > 0) text += "; keeping everything " + memory::exact_bytes(keep_everything_bytes);
  }
  if (process_budget_bytes > 0) {
    text += "; with " + to_string(outside) + " outside of it " + memory::exact_bytes(peak_bytes + outside.total()) +
            " of a budget of " + memory::exact_bytes(process_budget_bytes) + " for the process";
  }
  if (tier_bytes > 0) text += "; " + memory::exact_bytes(tier_bytes) + " in tiers";
  if (micro_batches > 1) text += "; " + std::to_string(micro_batches) + " micro-batches";
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

/// Makes the runs that the trainer's plans need.
class TrainerCore::Planned final : public PlannedProgram {
 public:
  explicit Planned(TrainerCore& core) : core_(core) {}

  std::size_t part_count() const override { return core_.program_->part_names().size(); }
  bool cuts_into(std::int64_t micro_batches) const override {
    constexpr std::int64_t max_count = 64;  // a program whose batch has fewer samples throws earlier
    return micro_batches <= max_count;
  }
  MakeRun part_run(const ExampleStep& step, std::size_t part) const override { return core_.part_steps(step, part); }
  MakeRun planned_run(std::vector<ExampleStep> steps, const ShapePlans&) const override {
    return core_.whole_steps(std::move(steps), true);
  }
  /// Adapts rank 0's plan to this rank's shards, whose sizes may differ.
  Plan for_this_rank(Plan plan, const ExampleStep& step, std::size_t part) override {
    if (core_.rank() == 0 || !plan.tape) return plan;
    const MakeRun own = [&](memory::Device device) {
      return std::make_unique<TrainerRun>(
          *core_.program_, core_.options_, device,
          RunRequest{.steps = {step}, .only_part = part, .whole = core_.whole_.get(), .rank = core_.rank()});
    };
    const auto tape = std::make_shared<TapePlan>(*plan.tape);
    tape->sizes = record_step(core_.options_.device, own).sizes();
    plan.tape = tape;
    return plan;
  }
  std::vector<std::size_t> rank_bytes(std::size_t own_bytes) override {
    if (!core_.whole_) return {};
    std::vector<std::size_t> all(static_cast<std::size_t>(core_.options_.ranks.ranks->size()));
    core_.options_.ranks.ranks->all_gather(&own_bytes, sizeof own_bytes, all.data());
    return all;
  }
  memory::OutsideFacts outside_facts(std::size_t nodes) const override {
    const TrainerOptions& options = core_.options_;
    const OffloadOptions& offload = options.offload;
    const int tiers = (options.planner.spilling.offloads ? 1 : 0) +
                      (offload.optimizer ? static_cast<int>(part_count()) : 0) + (offload.gradients ? 1 : 0) +
                      (offload.parameters ? 1 : 0);
    const bool has_files = !options.save.empty() || !options.best.empty() || !options.resume.empty();
    return {.threads = thread_count(),
            .tier_threads = tiers * memory::FileTier::Options().workers,
            .nodes = nodes,
            .staging = has_files ? file_staging_bytes : 0};
  }
  void refuse(std::size_t least_bytes) override { core_.refuse_budget(least_bytes); }

 private:
  TrainerCore& core_;
};

TrainerCore::TrainerCore(std::unique_ptr<AnyProgram> program, TrainerOptions options)
    : program_(std::move(program)),
      options_(std::move(options)),
      costs_(costs_of(options_)),
      planned_(std::make_unique<Planned>(*this)),
      plans_(std::make_unique<RunPlans>(*planned_, options_, costs_)) {
  check();
  complete_planning();
  check_parts();
  if (options_.step.micro_batches == auto_micro_batches) {  // before check_files(): a checkpoint records their number
    std::vector<ExampleStep> steps;
    for (const std::int64_t step : options_.example_steps) steps.push_back({step, is_frozen_});
    plans_->choose_micro_batches(steps);
  }
  check_files();
  require_alike();
  machine_ = machine_text(options_.device);
  for (const std::int64_t step : options_.example_steps) require_planned(step, key_of(step));
}

StepKey TrainerCore::key_of(std::int64_t step) const {
  RandomGenerator scratch(options_.seed);
  const GeneratorScope scope(scratch);
  BatchOutline outline = program_->outline(step, dry(options_.device), options_.all_micro_batches());
  return {std::move(outline.shapes), std::move(outline.values), is_frozen_};
}

/// Whole steps, with or without their plans.
MakeRun TrainerCore::whole_steps(std::vector<ExampleStep> steps, bool is_planned) const {
  return [this, steps = std::move(steps), is_planned](memory::Device device) {
    RunRequest request{.steps = steps, .whole = whole_.get(), .rank = rank(), .updates = first_step_ - first_skipped_};
    if (is_planned) request.shapes = &plans_->shapes();
    return std::make_unique<TrainerRun>(*program_, options_, device, std::move(request));
  };
}

/// Steps as rank 0 makes them: in stage 3 of ZeRO all ranks follow one plan.
MakeRun TrainerCore::part_steps(const ExampleStep& step, std::size_t part) const {
  return [this, step, part](memory::Device device) {
    return std::make_unique<TrainerRun>(*program_, options_, device,
                                        RunRequest{.steps = {step}, .only_part = part, .whole = whole_.get()});
  };
}

int TrainerCore::rank() const noexcept { return whole_ ? options_.ranks.ranks->rank() : 0; }

void TrainerCore::require_planned(std::int64_t step, const StepKey& key) {
  for (const auto& shape : plans_->shapes()) {
    if (shape->is_of(key)) return;
  }
  std::optional<StepRecord> own;
  for (const auto& shape : plans_->shapes()) {
    if (shape->shapes != key.shapes || shape->is_frozen != key.is_frozen) continue;
    if (!shape->record) shape->record = record(shape->example);
    if (!own) own = record({step, key.is_frozen});
    if (*own != *shape->record) continue;
    shape->values.push_back(key.values);
    return;
  }
  add_shape(step, key);
}

StepRecord TrainerCore::record(const ExampleStep& step) const {
  const memory::Device on = dry(options_.device);
  memory::Options of_stack = profile_options(on);
  of_stack.trace = true;
  const memory::Stack stack = memory::make_resource(on, std::move(of_stack));
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, RunRequest{.steps = {step}, .whole = whole_.get(), .rank = rank()});
  StepRecord record;
  run.options().recording.operators = &record.operators;
  const std::size_t begin = stack.trace->event_count();
  run.step();
  record.events = stack.trace->events();
  record.events.erase(record.events.begin(), record.events.begin() + static_cast<std::ptrdiff_t>(begin));
  return record;
}

/// Translates options.offload for the planner, and checks that a given plan packs only if the options allow it.
void TrainerCore::complete_planning() {
  const OffloadOptions& offload = options_.offload;
  if (offload.saved_tensors) options_.planner.spilling.offloads = true;
  if (offload.any() && !options_.planner.make_tier) {
    options_.planner.make_tier = [folder = offload.folder](memory::Device device) {
      return memory::make_tier(device, {.folder = folder});
    };
  }
  if (!options_.plan || options_.planner.spilling.packs) return;
  options_.plan = [given = options_.plan](const MakeRun& make, memory::Device device, const MakeTier& make_tier) {
    Plan plan = given(make, device, make_tier);
    if (plan.packed_bytes == 0) return plan;
    throw ValueError(
        "trainer: options.plan packs tensors, which rounds gradients; expected options.planner.spilling.packs = true");
  };
}

/// Plans a new key. If no plan fits, nothing changes.
void TrainerCore::add_shape(std::int64_t step, const StepKey& key) {
  const ShapePlans& known = plans_->shapes();
  const auto refuse = [&](const std::string& option, const std::string& end) {
    throw PlanError("trainer: options." + option + " batches with " + known.front()->key + ", got one with " + end);
  };
  if (options_.plan && !known.empty() && options_.budget_bytes == 0 && options_.process_budget_bytes == 0) {
    refuse("plan is of", key.shapes + "; a budget plans others as well");
  }
  if (options_.captures_steps && !known.empty()) {
    refuse("captures_steps: expected", key.shapes + (key.values.empty() ? "" : "; " + key.values));
  }
  for (std::size_t part = 0; part < program_->part_names().size() && options_.ranks.tensor_parallel > 1; ++part)
    check_shards(options_.device, part_steps({step, key.is_frozen}, part));
  auto shape = std::make_unique<ShapePlan>();
  shape->shapes = key.shapes;
  shape->values = {key.values};
  shape->is_frozen = key.is_frozen;
  shape->example = {step, key.is_frozen};
  shape->key = key.shapes + (key.values.empty() ? "" : "; " + key.values);
  if (key.is_frozen != is_frozen_) {
    const auto frozen = std::count(key.is_frozen.begin(), key.is_frozen.end(), true);
    shape->key += "; " + std::to_string(frozen) + " of " + std::to_string(key.is_frozen.size()) + " parameters frozen";
  }
  plans_->add(std::move(shape));
  if (options_.process_budget_bytes > 0) {
    plan_in_bound(options_.process_budget_bytes, [this] { plans_->fit(); });
  } else {
    plans_->fit();
  }
  if (arena_ && arena_->stack().placed) arena_->stack().placed->set_plans(plans_->placements());
  describe();
}

const TrainerPlan& TrainerCore::plan() const noexcept { return plans_->plan(); }

void TrainerCore::describe() {
  TrainerPlan& plan = plans_->plan();
  plan.shapes.clear();
  plan.budget_bytes = plans_->budget_bytes();
  plan.micro_batches = options_.step.micro_batches;
  plan.process_budget_bytes = options_.process_budget_bytes;
  plan.keep_everything_bytes = is_planned() ? 0 : plan.peak_bytes;
  const std::vector<std::string> names = program_->part_names();
  for (const auto& shape : plans_->shapes()) {
    TrainerPlan::Shapes of{shape->key, shape->example.step, {}};
    for (std::size_t part = 0; part < names.size(); ++part) {
      const Plan& of_part = shape->parts[part];
      of.parts.push_back({names[part], of_part.description, of_part.time_overhead, of_part.time_gap()});
    }
    for (const auto& planner : shape->planners) {
      plan.keep_everything_bytes = std::max(plan.keep_everything_bytes, planner->keep_everything().peak_bytes);
    }
    plan.shapes.push_back(std::move(of));
  }
}

/// The trainer's run: plans new batches before their step, and checks that ranks agree on rates and evaluations.
class TrainerCore::Live final : public TrainerRun {
 public:
  explicit Live(TrainerCore& core)
      : TrainerRun(*core.program_, core.options_, core.options_.device,
                   {.shapes = &core.plans_->shapes(), .whole = core.whole_.get()}, core.first_step_,
                   core.first_skipped_),
        core_(core) {}

  void train_step(std::int64_t step, Progress& progress) override;
  /// Must give the same loss on all ranks: rates and the end of training follow it.
  std::optional<Evaluation> evaluate() override {
    if (!core_.program_->evaluates()) return std::nullopt;
    const Evaluation evaluation = core_.evaluate();
    core_.require_same("evaluate", "the loss", evaluation.loss);
    note_evaluation(evaluation.loss);
    return evaluation;
  }
  void write_checkpoint(const std::string& path) override {
    const ResourceScope scope(core_.arena_->stack().top);
    TrainerRun::write_checkpoint(path);
  }

 private:
  TrainerCore& core_;
};

TrainerCore::~TrainerCore() = default;

TrainerCore::Live& TrainerCore::started() {
  if (run_) return *run_;
  require_idle("the model", false);
  const Call call(calling_, "the making of the model");
  RunNeed need{
      .budget_bytes = plans_->budget_bytes(), .peak_bytes = plan().peak_bytes, .placements = plans_->placements()};
  if (plans_->shapes().empty()) {
    need.placements.emplace_back();  // replaced when the first step is planned
  } else if (!whole_) {
    need.outside = plans_->outside_facts();
  }
  auto arena = std::make_unique<RunArena>(options_, std::move(need));
  try {
    run_ = arena->start([&] { return std::make_unique<Live>(*this); });
  } catch (const OutOfMemory&) {
    // Without example steps nothing is planned yet; the refusal of the first step names options that would fit.
    if (plans_->shapes().empty() && is_planned()) require_planned(first_step_, key_of(first_step_));
    throw;
  }
  arena_ = std::move(arena);
  plans_->hold_budget();
  return *run_;
}

ProgramRun& TrainerCore::live() { return started().program(); }

void TrainerCore::Live::train_step(std::int64_t step, Progress& progress) {
  const TrainerOptions& options = core_.options_;
  if (const std::string here = machine_text(options.device); here != core_.machine_) {
    throw PlanError("trainer: it was planned for '" + core_.machine_ + "', here it is '" + here + "'");
  }
  const Call call(core_.calling_, "a step");
  const ResourceScope scope(core_.arena_->stack().top);
  progress.step = steps() + 1;
  progress.rate = program().optimizer(0).rate();
  if (options.rate) core_.require_same("rate", "the rate of step " + std::to_string(steps()), options.rate(steps()));
  try {
    core_.require_planned(steps(), next_key());
  } catch (const BudgetError&) {
    if (!options.skips_unfitting) throw;
    TrainerRun::skip();
    progress.is_skipped = true;
    progress.loss = std::numeric_limits<double>::quiet_NaN();
    progress.losses.assign(losses().size(), progress.loss);
    return;
  }
  TrainerRun::train_step(step, progress);
  for (const auto& shape : core_.plans_->shapes()) shape->forget_values();
}

void TrainerCore::skip() {
  require_idle("skip()", true);
  started().skip();
}

std::int64_t TrainerCore::skipped_batches() { return started().skipped_batches(); }

std::int64_t TrainerCore::skipped_steps() { return started().skipped_steps(); }

/// Throws ValueError where a function of the program, or with `trains` an observer, calls back into its trainer.
void TrainerCore::require_idle(const char* call, bool trains) const {
  const char* const outer = calling_ != nullptr ? calling_ : trains ? training_ : nullptr;
  if (outer == nullptr) return;
  throw ValueError(std::string("trainer: ") + call + ": expected a call from outside, got one from inside of " + outer +
                   "; the program's functions and an observer must not train");
}

Progress TrainerCore::step() {
  require_idle("step()", true);
  const Call call(training_, "step()");
  Live& run = started();
  Progress progress;
  const std::int64_t skipped = skipped_steps();
  const auto begin = std::chrono::steady_clock::now();
  run.train_step(run.steps(), progress);
  progress.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  for (const double loss : progress.losses) {
    if (std::isfinite(loss) || skipped_steps() != skipped) continue;
    throw NotFiniteError("trainer: step " + std::to_string(progress.step) + ": expected a finite loss, got " +
                         std::to_string(loss) + "; its update is made, so go on from a checkpoint before it");
  }
  const std::int64_t every = options_.evaluate_every;
  const bool is_due = progress.step == options_.steps || (every > 0 && progress.step % every == 0);
  if (is_due) progress.evaluation = run.evaluate();
  const memory::Arena::Statistics arena = arena_->stack().arena->statistics();
  progress.bytes = arena.committed_bytes;
  progress.peak_bytes = arena.peak_committed_bytes;
  return progress;
}

RunReport TrainerCore::run(const TrainObserver& observer, const TrainControl& control) {
  require_idle("run()", true);
  const Call call(training_, "run()");
  Live& run = started();
  RunReport report;
  const LoopOptions looped{.resumed_steps = first_step_, .ranks = whole_ ? options_.ranks.ranks : nullptr};
  arena_->run(run, looped, observer, control, report);
  report.predicted_peak_bytes = plan().peak_bytes;
  report.predicted_tier_bytes = plan().tier_bytes;
  arena_->measure(run, looped.ranks, report);
  return report;
}

void TrainerCore::save(const std::string& path) { started().write_checkpoint(path); }

Evaluation TrainerCore::evaluate() {
  if (!program_->evaluates()) throw ValueError("trainer: the program has no evaluate");
  require_idle("evaluate()", false);
  Live& run = started();
  const Call call(calling_, "an evaluation");
  const ResourceScope scope(arena_->stack().top);
  Evaluation evaluation = *run.TrainerRun::evaluate();
  evaluation.loss = without_sign_of_nan(evaluation.loss);
  return evaluation;
}

/// Throws ValueError on all ranks if their numbers differ.
void TrainerCore::require_same(const std::string& function, const std::string& what, double own) const {
  if (!whole_) return;
  std::vector<double> all(static_cast<std::size_t>(options_.ranks.ranks->size()));
  options_.ranks.ranks->all_gather(&own, sizeof own, all.data());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (bit_cast<std::uint64_t>(all[rank]) == bit_cast<std::uint64_t>(all[0])) continue;
    throw ValueError("trainer: " + function + ": expected " + what + " to be the same on all ranks, got " +
                     format_real(all[0]) + " on rank 0 and " + format_real(all[rank]) + " on rank " +
                     std::to_string(rank));
  }
}

Certificate TrainerCore::certify(std::int64_t steps) {
  require_idle("certify()", false);
  const Call call(calling_, "certify()");
  for (std::int64_t step = 0; step < steps; ++step) require_planned(step, key_of(step));
  Certificate certificate = nn::certify(whole_steps({}, false), whole_steps({}, true), options_.device,
                                        plans_->placements(), {.steps = steps});
  certificate.predicted_peak_bytes = plan().peak_bytes;
  return certificate;
}

std::size_t TrainerCore::peak_bytes() const {
  return arena_ ? arena_->stack().arena->statistics().peak_committed_bytes : 0;
}

std::string TrainerCore::memory() const {
  if (!arena_) return "nothing is taken before the first step\n";
  const memory::Stack& stack = arena_->stack();
  return stack.ledger->summary() + memory::committed_table(stack) + memory::to_string(stack.arena->statistics());
}

const Plan& TrainerCore::step_plan() const {
  const bool is_one = plans_->shapes().size() == 1 && program_->part_names().size() == 1 && is_planned() && !whole_;
  if (!is_one) {
    throw ValueError("trainer: step_plan: expected a budget, one rank, one part and batches of one shape, got " +
                     std::string(is_planned() ? "a" : "no") + " budget, " +
                     std::to_string(whole_ ? options_.ranks.ranks->size() : 1) + " rank(s), " +
                     std::to_string(program_->part_names().size()) + " part(s), " +
                     std::to_string(plans_->shapes().size()) + " shape(s)");
  }
  return plans_->shapes().front()->parts.front();
}

std::string TrainerCore::explain() {
  require_idle("explain()", false);
  const Call call(calling_, "explain()");
  std::string text = plan().text();
  const std::vector<std::string> names = program_->part_names();
  for (const auto& shape : plans_->shapes()) {
    for (std::size_t part = 0; part < shape->parts.size() && is_planned(); ++part) {
      const std::string of = shape->key + (names[part].empty() ? "" : ", " + names[part]);
      const TapeGraph graph = record_step(options_.device, part_steps(shape->example, part));
      const std::vector<PlannedSegment> segments = planned_segments(shape->parts[part], graph);
      text += of +
              (segments.empty() ? ": nothing runs again\n" : ": segments that backward runs again, in part or whole\n");
      text += to_table(segments);
      if (part >= shape->planners.size()) continue;
      text += of + ": plans, from the smallest to the fastest\n";
      for (const Plan& plan : shape->planners[part]->plans()) {
        char overhead[32];
        std::snprintf(overhead, sizeof overhead, "%7.1f", 100 * plan.time_overhead);
        text += "  " + memory::exact_bytes(plan.peak_bytes) + " at" + overhead + " % more time\n";
      }
    }
  }
  const memory::Device on = dry(options_.device);
  memory::Options of_stack = profile_options(on);
  of_stack.plans = plans_->placements();
  const memory::Stack stack = memory::make_resource(on, std::move(of_stack));
  const ResourceScope scope(stack.top);
  std::vector<ExampleStep> steps;
  for (const auto& shape : plans_->shapes()) steps.insert(steps.end(), 2, shape->example);
  const std::unique_ptr<TrainingRun> run = whole_steps(steps, true)(on);
  for (std::size_t i = 0; i < steps.size(); ++i) run->step();
  if (stack.placed) stack.placed->release_region();
  run->finish([&] { run->step(); });
  return text + "bytes of steps and evaluation, by category and module\n" + stack.ledger->summary() +
         memory::committed_table(stack);
}

memory::PlacedArena::Statistics TrainerCore::placed() const {
  const bool is_placed = arena_ && arena_->stack().placed;
  return is_placed ? arena_->stack().placed->statistics() : memory::PlacedArena::Statistics{};
}

}  // namespace thimble::nn
