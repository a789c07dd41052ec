// What a trainer refuses: options, programs and files before anything is planned, and budgets that no plan keeps.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/dist/alike.h>
#include <thimble/memory/bytes.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/trainer/trainer_core.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::nn::trainer_detail {
namespace trainer_checks_detail {

/// Throws ValueError where options differ from those that a checkpoint was trained with: silently another run. `rate`
/// is that of the optimizer as the program makes it.
void check_settings(const TrainerOptions& options, const ErasedProgram& program, const CheckpointInfo& info,
                    TrainerRun& run, double rate) {
  std::string differences;
  const auto differ = [&](const std::string& name, const std::string& in_file, const std::string& given) {
    differences += (differences.empty() ? "" : "; ") + name + " is " + in_file + " in the file, " + given + " here";
  };
  constexpr std::string_view own = "trainer.";
  for (const auto& [key, given] : settings_of(options, program.part_names().front(), run.program().optimizer(0))) {
    const auto found = info.metadata.find(key);
    if (found != info.metadata.end() && found->second != given) {
      differ(key.substr(own.size()), found->second.empty() ? "none" : found->second, given.empty() ? "none" : given);
    }
  }
  const auto rate_step = info.metadata.find(rate_step_key);
  const auto text = [](double number) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%g", number);
    return std::string(digits);
  };
  if (!options.rate) {
    if (rate != info.rate) differ("the optimizer's rate", text(info.rate), text(rate));
  } else if (rate_step != info.metadata.end()) {
    const std::int64_t step = std::strtoll(rate_step->second.c_str(), nullptr, 10);
    const double given = options.rate(step);
    if (given != info.rate) differ("the rate of step " + std::to_string(step), text(info.rate), text(given));
  }
  if (differences.empty()) return;
  throw ValueError("trainer: resume: " + quote(options.resume, 200) + " was trained with other options: " +
                   differences + "; give the file's, or changes_options = true to go on with those here");
}

}  // namespace trainer_checks_detail

void TrainerCore::check() const {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  const StepOptions& step = options_.step;
  if (options_.steps < 0) refuse(std::to_string(options_.steps) + " steps; at least 0");
  if (options_.evaluate_every < 0) refuse("an evaluation every " + std::to_string(options_.evaluate_every) + " steps");
  if (options_.device.is_dry) refuse("it trains on a real device; its plans are made on the dry twin");
  if (step.scaler != nullptr || step.judge != nullptr || step.gradient_tier || step.recording.plan ||
      step.recording.graph || step.recording.operators || step.recording.times || step.recording.watch ||
      step.ranks != nullptr || step.stage != nullptr) {
    refuse(
        "options.step: expected clip_norm, micro-batches, fuses_optimizer and on_gradients, got a scaler, a tier, a "
        "recording or "
        "ranks; a loop by hand over nn::training_step takes those");
  }
  if (step.micro_batches < 0) {
    refuse(std::to_string(step.micro_batches) + " micro-batches; expected at least 1, or nn::auto_micro_batches");
  }
  const bool has_others = options_.ranks.ranks != nullptr && options_.ranks.ranks->size() > 1;
  if (step.micro_batches == auto_micro_batches) {
    if (!has_budget()) refuse("options.step.micro_batches: auto needs a budget to choose for; expected a number");
    if (has_others) refuse("options.step.micro_batches: auto is for one rank; expected a number");
    if (!program_->cuts_batches()) refuse("options.step.micro_batches: auto needs the program's micro_batch");
    if (step.fuses_optimizer != FusedUpdate::off) {
      refuse("options.step.micro_batches: auto with a fused optimizer; expected 1");
    }
  }
  if (options_.process_budget_bytes > 0) {
    if (options_.device != cpu) {
      refuse("process_budget_bytes: the host's bytes beside a " + to_string(options_.device) +
             " are not known; expected the cpu");
    }
    if (has_others) refuse("process_budget_bytes is for one rank; expected budget_bytes, of each rank's arena");
  }
  if (options_.patience < 0) refuse("patience: expected at least 0, got " + std::to_string(options_.patience));
  if ((options_.patience > 0 || !options_.best.empty()) && !program_->evaluates()) {
    refuse("best and patience need the program's evaluate");
  }
  if (options_.all_micro_batches() == 1 && (step.micro_samples != 0 || !step.parts.empty())) {
    refuse("options.step.micro_samples or parts, and one micro-batch; expected several, or neither");
  }
  const RankOptions& ranks = options_.ranks;
  if (ranks.zero < 0 || ranks.zero > 3) {
    refuse("options.ranks.zero: expected a stage of ZeRO, 0 to 3, got " + std::to_string(ranks.zero));
  }
  if (ranks.ranks == nullptr && ranks.zero != 0) {
    refuse("options.ranks.zero: " + std::to_string(ranks.zero) +
           " without ranks to share with; expected options.ranks.ranks");
  }
  if (ranks.read_ahead < 0)
    refuse("options.ranks.read_ahead: expected at least 0, got " + std::to_string(ranks.read_ahead));
  if (has_others && step.fuses_optimizer != FusedUpdate::off) {
    refuse(
        "options.step.fuses_optimizer with several ranks: gradients are summed over ranks before an update; expected "
        "FusedUpdate::off");
  }
  if (options_.all_micro_batches() > 1 && !program_->cuts_batches()) {
    refuse("a step has " + std::to_string(options_.all_micro_batches()) +
           " micro-batches, over all ranks, and the program no "
           "micro_batch to cut its batches");
  }
  if (options_.loss_scale && program_->part_names().size() > 1)
    refuse("a loss scale with several parts; one is allowed");
  if (options_.evaluate_every > 0 && !program_->evaluates()) refuse("evaluate_every without evaluate");
}

/// No parameter has two optimizers: both would update it in every step.
void TrainerCore::check_parts() {
  const Device on = dry(options_.device);
  const memory::Stack stack = memory::make_resource(on, profile_options(on));
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, {});
  is_frozen_ = run.is_frozen();
  if (options_.ranks.ranks != nullptr && options_.ranks.ranks->size() > 1) {
    auto whole = std::make_unique<WholeProgram>();
    for (std::size_t part = 0; part < program_->part_names().size(); ++part) {
      whole->state.push_back(whole_state(run.program().optimizer(part)));
      whole->is_elementwise.push_back(run.program().optimizer(part).is_elementwise());
    }
    whole_ = std::move(whole);
  }
  const std::vector<std::string> names = program_->part_names();
  for (std::size_t later = 1; later < names.size(); ++later) {
    for (const optim::Named& p : run.program().optimizer(later).parameters()) {
      for (std::size_t part = 0; part < later; ++part) {
        if (!run.program().optimizer(part).leaves().has(p.tensor.leaf().get())) continue;
        throw ValueError("trainer: " + quote(p.name) + " is a parameter of part " + quote(names[part]) +
                         " and of part " + quote(names[later]) +
                         "; expected one optimizer for each, or it is updated twice in a step");
      }
    }
  }
}

/// What is written and read is tried before anything is planned.
void TrainerCore::check_files() {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  if (options_.save_every < 0) refuse("a checkpoint every " + std::to_string(options_.save_every) + " steps");
  if (options_.keep < 1) refuse("keep = " + std::to_string(options_.keep) + "; at least 1 checkpoint stays");
  if (options_.save.empty() && options_.save_every > 0) refuse("save_every without save");
  if (options_.save.empty() && options_.best.empty() && options_.resume.empty()) return;
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
    const double rate = run.program().optimizer(0).rate();
    run.load(options_.resume);
    const CheckpointInfo info = parse_checkpoint_info(SafetensorsReader(options_.resume).header(), options_.resume);
    if (info.seed != options_.seed) {
      refuse("resume: '" + options_.resume + "' was trained with seed " + std::to_string(info.seed) +
             "; expected the same seed, got " + std::to_string(options_.seed));
    }
    if (!options_.changes_options) trainer_checks_detail::check_settings(options_, *program_, info, run, rate);
    first_step_ = steps_done(info);
    first_skipped_ = first_step_ - info.step_count - (info.scaler ? info.scaler->skipped_steps : 0);
    if (first_step_ >= options_.steps) {
      refuse("resume: '" + options_.resume + "' has done " + std::to_string(first_step_) +
             " steps; steps = " + std::to_string(options_.steps) + " must be more (it counts from the start)");
    }
  }
  if (rank() > 0) return;  // rank 0 writes
  const std::uint64_t bytes = checkpoint_bytes(*run.program().modules().front(), run.program().optimizer(0));
  if (!options_.best.empty()) check_keeping("trainer: best", {options_.best}, options_.steps, 0, bytes);
  if (options_.save.empty()) return;
  check_keeping("trainer: save", {options_.save, options_.keep}, options_.steps, options_.save_every, bytes);
}

/// Throws ValueError on all ranks where they were made with other options or programs.
void TrainerCore::require_alike() const {
  if (!whole_) return;
  std::vector<dist::Trait> traits = dist::process_traits();
  const auto add = [&](const std::string& name, std::int64_t value) {
    traits.push_back({name, std::to_string(value)});
  };
  const Device on = dry(options_.device);
  const memory::Stack stack = memory::make_resource(on);
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, {});
  const std::vector<std::string> names = program_->part_names();
  for (std::size_t part = 0; part < names.size(); ++part) {
    const optim::Optimizer& optimizer = run.program().optimizer(part);
    traits.push_back({"the optimizer of part " + quote(names[part]), optimizer.name()});
    for (const auto& [key, value] : settings_of(options_, names[part], optimizer)) traits.push_back({key, value});
  }
  traits.push_back({"device", options_.device.is_cuda() ? "cuda" : "cpu"});
  add("seed", static_cast<std::int64_t>(options_.seed));
  add("steps", options_.steps);
  add("evaluate_every", options_.evaluate_every);
  add("budget_bytes", static_cast<std::int64_t>(options_.budget_bytes));
  add("ranks.zero", options_.ranks.zero);
  add("ranks.bucket_bytes", static_cast<std::int64_t>(options_.ranks.bucket_bytes));
  add("ranks.read_ahead", options_.ranks.read_ahead);
  add("steps done", first_step_);
  traits.push_back({"save", options_.save});
  add("save_every", options_.save_every);
  dist::require_alike(*options_.ranks.ranks, "trainer", traits);
}

/// Says who needs more than the budget, and what would fit.
void TrainerCore::refuse_budget(std::size_t least) {
  const std::size_t budget = budget_;
  const Device on = dry(options_.device);
  if (program_->evaluates()) {
    const memory::Stack stack = memory::make_resource(on, profile_options(on));
    const ResourceScope scope(stack.top);
    TrainerRun(*program_, options_, on, RunRequest{.whole = whole_.get()}).evaluate();
    const std::size_t evaluation = stack.arena->statistics().peak_committed_bytes;
    if (evaluation > budget) {
      throw BudgetError("trainer: the evaluation needs " + memory::exact_bytes(evaluation) + ", the budget is " +
                            memory::exact_bytes(budget) + "; evaluate fewer samples at a time, or give it " +
                            memory::exact_bytes(least),
                        budget, least);
    }
  }
  const ShapePlan& shape = *shapes_.back();
  std::size_t kept = 0;
  for (const auto& one : shapes_) {
    for (const auto& planner : one->planners) kept = std::max(kept, planner->keep_everything().peak_bytes);
  }
  throw BudgetError("trainer: no plans of steps with " + shape.key + " need as little as " +
                        memory::exact_bytes(budget) + "; the smallest need " + memory::exact_bytes(least) +
                        ", keeping everything " + memory::exact_bytes(kept) + what_would_fit(shape),
                    budget, least);
}

/// What of the trainer's own options brings a step into the budget, with what it then needs.
std::string TrainerCore::what_would_fit(const ShapePlan& shape) const {
  const auto smallest = [&](const StepOptions& step) {
    TrainerOptions other = options_;
    other.step = step;
    std::size_t most = 0;
    for (std::size_t part = 0; part < shape.parts.size(); ++part) {
      const MakeRun make = [&, part](Device device) {
        return std::make_unique<TrainerRun>(
            *program_, other, device, RunRequest{.steps = {shape.example}, .only_part = part, .whole = whole_.get()});
      };
      most = std::max(most, Planner(make, options_.device, costs_, options_.planner).smallest().peak_bytes);
    }
    return most;
  };
  std::string fits;
  const auto try_with = [&](const std::string& name, const StepOptions& step) {
    try {
      const std::size_t bytes = smallest(step);
      if (bytes > budget_) return false;
      fits += "; options.step." + name + " would need " + memory::exact_bytes(bytes);
      return true;
    } catch (const Error&) {
      return false;  // a batch of fewer samples, an optimizer that cannot be fused
    }
  };
  StepOptions step = options_.step;
  if (step.fuses_optimizer == FusedUpdate::off && step.micro_batches == 1 && step.clip_norm == 0) {
    step.fuses_optimizer = FusedUpdate::secured;
    try_with("fuses_optimizer = FusedUpdate::secured", step);
  }
  step = options_.step;
  step.fuses_optimizer = FusedUpdate::off;
  step.micro_samples = 0, step.parts.clear();
  constexpr std::int64_t most_micro_batches = 64;
  while (program_->cuts_batches() && (step.micro_batches *= 2) <= most_micro_batches) {
    if (try_with("micro_batches = " + std::to_string(step.micro_batches), step)) break;
  }
  if (!fits.empty()) return fits;
  if (!program_->cuts_batches()) return "; with TrainedProgram::micro_batch a step can run in several micro-batches";
  return "; a smaller batch or model is needed";
}

}  // namespace thimble::nn::trainer_detail
