// Errors of the trainer: invalid options, programs and files, before planning, and budgets that no plan meets.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/outputs.h>
#include <thimble/dist/alike.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/fit/levers.h>
#include <thimble/nn/step/dry_scope.h>
#include <thimble/nn/step/gradient_sink.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>
#include <thimble/nn/trainer/trainer_core.h>
#include <thimble/nn/trainer/trainer_run.h>

namespace thimble::nn {
namespace {

/// Throws ValueError if options differ from the checkpoint's: training would silently change. `rates` are the
/// optimizers' as the program makes them.
void check_settings(const TrainerOptions& options, const CheckpointInfo& info, TrainerRun& run,
                    const std::vector<double>& rates) {
  std::string differences;
  const auto differ = [&](const std::string& name, const std::string& in_file, const std::string& given) {
    differences += (differences.empty() ? "" : "; ") + name + " is " + in_file + " in the file, " + given + " here";
  };
  constexpr std::string_view own = "trainer.";
  const std::map<std::string, std::string> settings = run.settings();
  const auto text_of = [](const auto& all, const std::string& key) {
    const auto found = all.find(key);
    return found == all.end() || found->second.empty() ? std::string("none") : found->second;
  };
  const bool has_settings = info.metadata.contains("trainer.clip_norm");  // older files lack settings
  std::set<std::string> keys;
  for (const auto& [key, value] : settings) keys.insert(key);
  for (const auto& [key, value] : info.metadata) {
    if (key.starts_with(own) && !is_state_key(key)) keys.insert(key);
  }
  for (const std::string& key : keys) {
    const std::string in_file = text_of(info.metadata, key), given = text_of(settings, key);
    if (has_settings && in_file != given) differ(key.substr(own.size()), in_file, given);
  }
  const auto rate_step = info.metadata.find(rate_step_key);
  if (!options.rate) {
    for (std::size_t part = 0; part < rates.size(); ++part) {
      const double in_file = part == 0 ? info.rate : info.others[part - 1].rate;
      const std::string name = part == 0 ? "the optimizer's rate" : "the rate of optimizer " + std::to_string(part);
      const double given = rates[part] * run.rate_factor();
      if (given != in_file) differ(name, format_short(in_file), format_short(given));
    }
  } else if (rate_step != info.metadata.end()) {
    const std::int64_t step = std::strtoll(rate_step->second.c_str(), nullptr, 10);
    const double given = options.rate(step) * run.rate_factor();
    if (given != info.rate)
      differ("the rate of step " + std::to_string(step), format_short(info.rate), format_short(given));
  }
  if (differences.empty()) return;
  throw ValueError("trainer: resume: " + quote(options.resume, 200) + " was trained with other options: " +
                   differences + "; give the file's, or changes_options = true to go on with those here");
}

}  // namespace

void check_shards(memory::Device device, const MakeRun& make) {
  record_step(device, make, [](TrainingRun& run, const TapeGraph& graph) {
    std::set<PathId> shards, dropouts;
    const auto note = [&](Module& m) {
      if (dynamic_cast<const Dropout*>(&m) != nullptr) dropouts.insert(m.path());
      const auto* const all = dynamic_cast<const ShardedLayer*>(&m);
      for (std::size_t i = 0; all != nullptr && i < all->shards().size(); ++i) shards.insert(all->shards()[i]->path());
    };
    for (Module* const module : dynamic_cast<TrainerRun&>(run).program().modules()) module->for_each_module(note);
    std::vector<bool> is_inside(graph.values.size()), is_end(graph.values.size());
    for (const TapeGraph::Node& node : graph.nodes) {
      const bool is_shard = shards.contains(node.path), is_entry = node.is<dist::CopyToGroup>();
      const bool is_sum = node.is<dist::AllReduce>(), is_view = node.type->cost == ops::Cost::view && !is_entry;
      const auto is_made_inside = [&](std::uint32_t v) { return v != TapeGraph::none && is_inside[v]; };
      if (!is_shard && !is_entry && std::ranges::none_of(node.inputs, is_made_inside)) continue;
      is_inside[node.output] = !is_sum;
      is_end[node.output] = is_shard || (is_view && is_end[node.inputs[0]]);
      std::string expected = dropouts.contains(node.path) && !is_shard ? "it in options.ranks.sharded" : "";
      for (std::size_t i = 0; i < node.inputs.size() && !is_entry; ++i) {
        const std::uint32_t v = node.inputs[i];
        if (is_sum && !is_end[v]) expected = "its function to end with the row-sharded layer";
        const bool is_whole = !is_sum && node.needs[static_cast<int>(i)] && !is_inside[v];
        if (!is_whole || (is_shard && graph.values[v].is_leaf)) continue;
        expected = "a shard or a constant, got a whole tensor " + to_string(graph.values[v].shape);
      }
      if (expected.empty()) continue;
      throw ValueError("trainer: " + quote(path_name(node.path)) + ": " + node.type->name +
                       " within nn::run_sharded: expected " + expected);
    }
  });
}

void TrainerCore::check() const {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  const StepOptions& step = options_.step;
  std::vector<std::string> names = program_->part_names();
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    refuse("parts: expected different names, got " + quote(*twice) + " twice");
  }
  if (options_.steps < 0) refuse(std::to_string(options_.steps) + " steps; at least 0");
  for (const std::int64_t example : options_.example_steps) {
    if (example < 0) refuse("example_steps: expected at least 0, got " + std::to_string(example));
  }
  if (options_.evaluate_every < 0) refuse("an evaluation every " + std::to_string(options_.evaluate_every) + " steps");
  if (options_.device.is_dry) refuse("it trains on a real device; its plans are made on the dry twin");
  if (step.scaler != nullptr || step.judge != nullptr || step.gradient_tier || step.recording.plan ||
      step.recording.graph || step.recording.operators || step.recording.times || step.recording.watch ||
      step.ranks != nullptr || step.stage != nullptr) {
    refuse(
        "options.step: expected clip_norm, micro-batches, fuses_optimizer and on_gradients, got a scaler, a tier, a "
        "recording or ranks; a loop by hand over nn::training_step takes those");
  }
  if (step.micro_batches < 0) {
    refuse(std::to_string(step.micro_batches) + " micro-batches; expected at least 1, or nn::auto_micro_batches");
  }
  const bool has_others = options_.ranks.ranks != nullptr && options_.ranks.ranks->size() > 1;
  const bool has_budget = options_.budget_bytes > 0 || options_.process_budget_bytes > 0;
  if (step.micro_batches == auto_micro_batches) {
    if (!has_budget) refuse("options.step.micro_batches: auto needs a budget to choose for; expected a number");
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
  const OffloadOptions& offload = options_.offload;
  if (offload.read_ahead < 0) {
    refuse("options.offload.read_ahead: expected at least 0, got " + std::to_string(offload.read_ahead));
  }
  if (!offload.any() && !offload.folder.empty()) {
    refuse(
        "options.offload.folder: expected tensors to offload there, got none; set saved_tensors, optimizer, gradients "
        "or parameters");
  }
  if (offload.saved_tensors && !has_budget) {
    refuse("options.offload.saved_tensors: plans choose the tensors; expected a budget");
  }
  if (offload.any() && !options_.planner.make_tier && options_.device.is_cuda() != offload.folder.empty()) {
    refuse(options_.device.is_cuda()
               ? "options.offload.folder: tensors of a GPU wait in the host's pinned memory; expected no folder, got " +
                     quote(offload.folder)
               : std::string("options.offload.folder: expected a folder on a disk, got none"));
  }
  if (!offload.folder.empty() && options_.planner.make_tier) {
    refuse("options.offload.folder: not with options.planner.make_tier, which makes the tiers; leave out one of them");
  }
  if (offload.parameters && has_others) {
    refuse("options.offload.parameters is for one rank; options.ranks.zero = 3 shards the parameters of several");
  }
  if (options_.captures_steps) {
    const bool is_away = offload.any() || !offload.folder.empty();
    const std::string why =
        !options_.device.is_cuda()           ? "steps on the " + to_string(options_.device) + " are not captured"
        : has_others                         ? std::string("expected one rank")
        : program_->part_names().size() != 1 ? std::string("expected a program with one part")
        : is_away                            ? std::string("expected no offload, whose transfers the host makes")
        : step.on_gradients                  ? std::string("expected no step.on_gradients, which the host calls")
        : program_->has_after_update()       ? std::string("expected no after_update, which the host calls")
                                             : std::string();
    if (!why.empty()) refuse("options.captures_steps: " + why);
  }
  if (options_.plan && program_->part_names().size() != 1) {
    refuse("options.plan: expected a program with one part, got " + std::to_string(program_->part_names().size()));
  }
  if (options_.plan && (has_others || step.micro_batches == auto_micro_batches)) {
    refuse(std::string("options.plan: expected one rank and a number of micro-batches, got ") +
           (has_others ? std::to_string(options_.ranks.ranks->size()) + " ranks" : "auto_micro_batches"));
  }
  if (!(options_.refusal_ms >= 0)) {
    refuse("options.refusal_ms: expected at least 0, got " + std::to_string(options_.refusal_ms));
  }
  if (options_.plateau && !program_->evaluates()) refuse("options.plateau needs the program's evaluate");
  if (options_.plateau) optim::Plateau(*options_.plateau);  // throws for options out of range
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
  if (ranks.tensor_parallel < 1) {
    refuse("options.ranks.tensor_parallel: expected at least 1, got " + std::to_string(ranks.tensor_parallel));
  }
  if (has_others && ranks.ranks->size() % ranks.tensor_parallel != 0) {
    refuse("options.ranks.tensor_parallel: expected a divisor of " + std::to_string(ranks.ranks->size()) +
           " ranks, got " + std::to_string(ranks.tensor_parallel));
  }
  if ((ranks.tensor_parallel > 1) == ranks.sharded.empty()) {
    refuse(ranks.sharded.empty()
               ? std::string("options.ranks.tensor_parallel: expected layers in options.ranks.sharded")
               : "options.ranks.sharded: expected a tensor_parallel of at least 2, got 1");
  }
  for (const ShardedChild& child : ranks.sharded) {
    const auto count = std::ranges::count(ranks.sharded, child.name, &ShardedChild::name);
    if (count == 1 && (child.projections == 1 || (child.projections > 1 && child.kind == Sharding::column))) continue;
    refuse("options.ranks.sharded: " + quote(child.name) +
           ": expected it once, with 1 projection or a column's, got it " + std::to_string(count) + " times with " +
           std::to_string(child.projections));
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
           " micro-batches, over all ranks, and the program no micro_batch to cut its batches");
  }
  if (options_.loss_scale && program_->part_names().size() > 1) refuse("a loss scale with several parts; expected one");
  if (options_.evaluate_every > 0 && !program_->evaluates()) refuse("evaluate_every without evaluate");
  // Rejects options that would have no effect.
  const auto need = [&](bool is_on, const char* option, bool is_met, const char* other) {
    if (is_on && !is_met) refuse(std::string("options.") + option + ": needs " + other);
  };
  constexpr const char* budget = "options.budget_bytes or process_budget_bytes";
  const SpillPolicy& spilling = options_.planner.spilling;
  need(!options_.hardware.empty(), "hardware", has_budget || options_.device.is_cuda(), budget);
  need(spilling.offloads || spilling.packs, "planner.spilling", has_budget, budget);
  constexpr const char* plan = "a plan: options.budget_bytes or plan";
  need(options_.skips_unfitting, "skips_unfitting", is_planned(), plan);
  need(options_.is_strict, "is_strict", is_planned() || options_.captures_steps, plan);
  need(options_.refusal_ms != default_refusal_ms, "refusal_ms", has_budget, budget);
  need(options_.planner.make_tier != nullptr, "planner.make_tier", offload.any() || spilling.offloads || options_.plan,
       "tensors to offload: options.offload or planner.spilling.offloads");
  need(options_.patience > 0, "patience", options_.evaluate_every > 0, "options.evaluate_every");
  need(options_.plateau.has_value(), "plateau", options_.evaluate_every > 0, "options.evaluate_every");
  need(options_.changes_options, "changes_options", !options_.resume.empty(), "options.resume");
  need(options_.keep > 1, "keep", !options_.save.empty(), "options.save");
  need(options_.overwrites, "overwrites", !options_.save.empty() || !options_.best.empty(), "options.save or best");
  need(offload.read_ahead != OffloadOptions().read_ahead, "offload.read_ahead", offload.parameters,
       "options.offload.parameters");
  need(ranks.read_ahead != RankOptions().read_ahead, "ranks.read_ahead", ranks.zero == 3, "options.ranks.zero = 3");
  need(ranks.bucket_bytes != RankOptions().bucket_bytes, "ranks.bucket_bytes", ranks.ranks != nullptr,
       "options.ranks.ranks");
}

/// Requires that every optimizer has parameters, and that no two share one, which every step would update twice.
void TrainerCore::check_parts() {
  const memory::Device on = dry(options_.device);
  const DryScope scope(on);
  if (options_.ranks.ranks != nullptr && options_.ranks.ranks->size() > 1) {
    TrainerOptions of_whole = options_;
    of_whole.ranks.tensor_parallel = 1, of_whole.ranks.sharded.clear();
    TrainerRun run(*program_, of_whole, on, {});
    auto whole = std::make_unique<WholeProgram>();
    for (std::size_t part = 0; part < program_->part_names().size(); ++part) {
      whole->state.push_back(whole_state(run.program().optimizer(part)));
      whole->is_elementwise.push_back(run.program().optimizer(part).is_elementwise());
      whole->groups.push_back(run.program().optimizer(part).group_settings());
    }
    whole_ = std::move(whole);
  }
  TrainerRun run(*program_, options_, on, {});
  is_frozen_ = TrainerRun(*program_, options_, on, RunRequest{.whole = whole_.get(), .rank = rank()}).is_frozen();
  const std::vector<std::string> names = program_->part_names();
  for (std::size_t part = 0; part < names.size() && !whole_; ++part) {
    if (!run.program().optimizer(part).parameters().empty()) continue;
    throw ValueError("trainer: the optimizer of part " + quote(names[part]) +
                     " has no parameters; expected at least one, as the module's trainable() lists them");
  }
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

/// Tries all files that the run reads or writes, before planning.
void TrainerCore::check_files() {
  const auto refuse = [](const std::string& why) { throw ValueError("trainer: " + why); };
  if (options_.save_every < 0) refuse("a checkpoint every " + std::to_string(options_.save_every) + " steps");
  if (options_.keep < 1) refuse("keep = " + std::to_string(options_.keep) + "; at least 1 checkpoint stays");
  if (options_.save.empty() && options_.save_every > 0) refuse("save_every without save");
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(options_.log, error);
  if (is_file) refuse("log: " + quote(options_.log, 200) + " is a file; expected a folder");
  if (options_.save.empty() && options_.best.empty() && options_.resume.empty()) return;
  const memory::Device on = dry(options_.device);
  const memory::Stack stack = memory::make_resource(on);
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, {});
  const std::size_t parts = program_->part_names().size(), modules = run.program().modules().size();
  if (whole_ && (parts > 1 || modules > 1)) {
    refuse("save and resume on several ranks: expected one part and one module, got " + std::to_string(parts) +
           " and " + std::to_string(modules));
  }
  for (const NamedTensor& p : run.program().modules().front()->parameters()) {
    if (!whole_ || options_.ranks.zero < 3 || run.program().optimizer(0).leaves().has(p.tensor.leaf().get())) continue;
    refuse("save and resume with ranks.zero 3: expected an optimizer of all parameters, got one without " +
           quote(p.name) + "; ranks.zero 2 keeps parameters whole");
  }
  for (const Module* const module : run.program().modules()) {  // throws for names that no file can have
    std::vector<SafetensorsEntry> named;
    for (const auto& list : {module->parameters(), module->buffers()}) {
      for (const NamedTensor& t : list) named.push_back({.name = t.name, .shape = {}});
    }
    lay_out_safetensors(std::move(named), {});
  }
  if (!options_.resume.empty()) {
    std::vector<double> rates;
    for (std::size_t part = 0; part < parts; ++part) rates.push_back(run.program().optimizer(part).rate());
    run.load(options_.resume);
    const CheckpointInfo info = parse_checkpoint_info(SafetensorsReader(options_.resume).header(), options_.resume);
    if (info.seed != options_.seed) {
      refuse("resume: '" + options_.resume + "' was trained with seed " + std::to_string(info.seed) +
             "; expected the same seed, got " + std::to_string(options_.seed));
    }
    if (!options_.changes_options) check_settings(options_, info, run, rates);
    first_step_ = steps_done(info);
    first_skipped_ = count_in(info, skipped_batches_key);
    if (first_step_ >= options_.steps) {
      refuse("resume: '" + options_.resume + "' has done " + std::to_string(first_step_) +
             " steps; steps = " + std::to_string(options_.steps) + " must be more (it counts from the start)");
    }
  }
  if (rank() > 0) return;  // rank 0 writes
  check_names({{"save", options_.save, &file_kinds::checkpoint, std::string(options_.keep > 1 ? older_infix : "")},
               {"best", options_.best, &file_kinds::checkpoint},
               {"log", options_.log, &file_kinds::folder}},
              "trainer: ");
  std::uint64_t bytes = checkpoint_bytes(*run.program().modules().front(), run.program().optimizer(0));
  for (std::size_t part = 1; part < parts; ++part) bytes += run.program().optimizer(part).state_bytes();
  for (std::size_t i = 1; i < modules; ++i) bytes += weights_file_bytes(*run.program().modules()[i]);
  if (!options_.best.empty()) {
    check_keeping("trainer: best", {.path = options_.best, .overwrites = options_.overwrites}, options_.steps, 0,
                  bytes);
  }
  if (options_.save.empty()) return;
  check_keeping("trainer: save", {.path = options_.save, .keep = options_.keep, .overwrites = options_.overwrites},
                options_.steps, options_.save_every, bytes);
}

/// Throws ValueError on all ranks if their options or programs differ.
void TrainerCore::require_alike() const {
  if (!whole_) return;
  std::vector<dist::Trait> traits = dist::process_traits();
  const auto add = [&](const std::string& name, std::int64_t value) {
    traits.push_back({name, std::to_string(value)});
  };
  const memory::Device on = dry(options_.device);
  const memory::Stack stack = memory::make_resource(on);
  const ResourceScope scope(stack.top);
  TrainerRun run(*program_, options_, on, {});
  for (const auto& [key, value] : run.settings()) traits.push_back({key, value});
  for (std::size_t part = 0; part < program_->part_names().size(); ++part)
    traits.push_back({"optimizer " + std::to_string(part), run.program().optimizer(part).name()});
  traits.push_back({"device", options_.device.is_cuda() ? "cuda" : "cpu"});
  add("seed", static_cast<std::int64_t>(options_.seed));
  add("steps", options_.steps);
  add("evaluate_every", options_.evaluate_every);
  add("budget_bytes", static_cast<std::int64_t>(options_.budget_bytes));
  add("ranks.zero", options_.ranks.zero);
  add("ranks.bucket_bytes", static_cast<std::int64_t>(options_.ranks.bucket_bytes));
  add("ranks.read_ahead", options_.ranks.read_ahead);
  add("ranks.tensor_parallel", options_.ranks.tensor_parallel);
  add("patience", options_.patience);
  traits.insert(traits.end(), {{"save", options_.save}, {"best", options_.best}, {"hardware", options_.hardware}});
  add("planner.spilling", 2 * options_.planner.spilling.offloads + options_.planner.spilling.packs);
  add("step.on_gradients", options_.step.on_gradients != nullptr);
  for (const std::int64_t step : options_.example_steps) add("example_steps " + std::to_string(step), step);
  for (const ShardedChild& s : options_.ranks.sharded) {
    traits.push_back({"ranks.sharded " + quote(s.name),
                      std::to_string(static_cast<int>(s.kind)) + ", " + std::to_string(s.projections)});
  }
  add("steps done", first_step_);
  add("save_every", options_.save_every);
  dist::require_alike(*options_.ranks.ranks, "trainer", traits);
}

/// Throws BudgetError, which names the part of the run that exceeds the budget, and options that would fit.
void TrainerCore::refuse_budget(std::size_t least_bytes) {
  const std::size_t budget = plans_->budget_bytes();
  const memory::Device on = dry(options_.device);
  if (program_->evaluates()) {
    const DryScope scope(on);
    TrainerRun(*program_, options_, on, RunRequest{.whole = whole_.get()}).evaluate();
    const std::size_t evaluation = scope.stack.arena->statistics().peak_committed_bytes;
    if (evaluation > budget) {
      throw BudgetError("trainer: the evaluation needs " + memory::exact_bytes(evaluation) + ", the budget is " +
                            memory::exact_bytes(budget) + "; evaluate fewer samples at a time, or give it " +
                            memory::exact_bytes(least_bytes),
                        budget, least_bytes);
    }
  }
  const ShapePlan& shape = *plans_->shapes().back();
  if (shape.planners.empty()) {
    throw BudgetError("trainer: options.plan needs " + memory::exact_bytes(least_bytes) + ", the budget is " +
                          memory::exact_bytes(budget),
                      budget, least_bytes);
  }
  std::size_t kept = 0;
  for (const auto& one : plans_->shapes()) {
    for (const auto& planner : one->planners) kept = std::max(kept, planner->keep_everything().peak_bytes);
  }
  throw BudgetError("trainer: no plans of steps with " + shape.key + " need as little as " +
                        memory::exact_bytes(budget) + "; the smallest need " + memory::exact_bytes(least_bytes) +
                        ", keeping everything " + memory::exact_bytes(kept) + what_would_fit(shape),
                    budget, least_bytes);
}

/// Options that are off, fit the trainer's other options, and make a part's step need less.
std::vector<Lever> TrainerCore::levers(const ShapePlan& shape, std::size_t part) const {
  std::vector<Lever> list;
  const auto add = [&](const std::string& name, const TrainerOptions& options, const std::string& note,
                       double transfer_s) {
    const auto changed = std::make_shared<const TrainerOptions>(options);
    const MakeRun make = [this, changed, part, example = shape.example](memory::Device device) {
      return std::make_unique<TrainerRun>(*program_, *changed, device,
                                          RunRequest{.steps = {example}, .only_part = part, .whole = whole_.get()});
    };
    list.push_back({name, [make] { return make; }, options.planner, note, transfer_s});
  };
  const StepOptions& step = options_.step;
  const bool is_alone = !whole_;
  const bool is_kept = is_alone && step.fuses_optimizer == FusedUpdate::off && !options_.offload.gradients;
  const auto can_send_to = [&](SinkKind sink) {
    return is_kept && refusal_of(sink, {.clip_norm = step.clip_norm,
                                        .micro_batches = step.micro_batches,
                                        .is_scaled = options_.loss_scale.has_value(),
                                        .is_scale_dynamic = options_.loss_scale && options_.loss_scale->is_dynamic,
                                        .has_hook = step.on_gradients != nullptr}) == SinkRefusal::none;
  };
  if (can_send_to(SinkKind::fused)) {
    TrainerOptions other = options_;
    other.step.fuses_optimizer = FusedUpdate::secured;
    add("options.step.fuses_optimizer = FusedUpdate::secured", other, "", 0);
  }
  constexpr std::int64_t max_micro_batches = 64;
  for (std::int64_t count = 2 * step.micro_batches; count <= max_micro_batches; count *= 2) {
    if (!program_->cuts_batches() || (is_alone && !is_kept)) break;
    TrainerOptions other = options_;
    other.step.micro_batches = count;
    other.step.micro_samples = 0, other.step.parts.clear();
    add("options.step.micro_batches = " + std::to_string(count), other, "", 0);
  }
  struct {
    double parameters = 0, gradients = 0, optimizer = 0;
  } bytes;
  {
    const memory::Device on = dry(options_.device);
    const DryScope scope(on);
    TrainerRun run(*program_, options_, on, RunRequest{.whole = whole_.get()});
    for (const optim::Named& p : run.parameters(part)) bytes.gradients += static_cast<double>(p.tensor.bytes());
    for (const Module* const module : run.program().modules()) {
      for (const NamedTensor& p : module->parameters()) bytes.parameters += static_cast<double>(p.tensor.bytes());
    }
    bytes.optimizer = static_cast<double>(run.program().optimizer(part).state_bytes());
  }
  // Forward, backward and the update read a parameter, and the update writes it; other offloaded tensors are written
  // and read once. Plans count only transfers of saved tensors, so the others are added as if nothing overlapped them.
  const auto offload = [&](bool optimizer, bool gradients, bool parameters) {
    TrainerOptions other = options_;
    OffloadOptions& away = other.offload;
    std::string name;
    double moved = 0;
    const auto set = [&](bool is_wanted, bool& option, const char* text, double transfers) {
      if (!is_wanted || option) return;
      option = true;
      name += (name.empty() ? "options.offload." : ", .") + std::string(text);
      moved += transfers;
    };
    set(true, away.saved_tensors, "saved_tensors", 0);
    set(optimizer && bytes.optimizer > 0, away.optimizer, "optimizer", 2 * bytes.optimizer);
    set(gradients && can_send_to(SinkKind::offloaded), away.gradients, "gradients", 2 * bytes.gradients);
    set(parameters && is_alone, away.parameters, "parameters", 4 * bytes.parameters);
    if (name.empty()) return;
    name += " = true";
    for (const Lever& known : list) {
      if (known.options == name) return;
    }
    other.planner.spilling.offloads = true;
    if (!other.planner.make_tier) other.planner.make_tier = [](memory::Device on) { return memory::make_tier(on); };
    add(name, other, "", moved / costs_.hardware.tier_bytes_per_s);
  };
  offload(false, false, false);
  offload(true, false, false);
  offload(true, true, false);
  offload(true, true, true);
  return list;
}

namespace {

/// The largest result of an operator in the step, if it takes at least an eighth of the budget: no plan can split it,
/// but the program can.
std::string largest_result(const TapeGraph& graph, std::size_t budget) {
  const TapeGraph::Node* largest = nullptr;
  const auto bytes = [&](const TapeGraph::Node& node) { return graph.bytes_of(node.output); };
  for (const TapeGraph::Node& node : graph.nodes) {
    if (node.type->cost != ops::Cost::view && (largest == nullptr || bytes(node) > bytes(*largest))) largest = &node;
  }
  if (largest == nullptr || bytes(*largest) < budget / 8) return "";
  const std::string path(path_name(largest->path));
  return "; the largest result is " + memory::exact_bytes(bytes(*largest)) + ", of " + largest->type->name +
         (path.empty() ? "" : " at " + quote(path)) +
         ": computed in chunks of rows, each a segment (checkpoint(), or linear_cross_entropy for a loss over "
         "classes), it would need less";
}

}  // namespace

/// Options that bring a step into the budget, with the bytes and time that it then needs.
std::string TrainerCore::what_would_fit(const ShapePlan& shape) const {
  std::size_t largest = 0;
  for (std::size_t part = 1; part < shape.planners.size(); ++part) {
    const auto bytes = [&](std::size_t i) { return shape.planners[i]->smallest().peak_bytes; };
    if (bytes(part) > bytes(largest)) largest = part;
  }
  LeverSearch search{options_.device, CostModel(costs_.hardware), plans_->budget_bytes(), plans_->begin_ms(),
                     options_.refusal_ms};
  LeverOffers offers = offer_levers(search, levers(shape, largest), shape.planners[largest]->kept_step_s());
  offers.how_to_try_all = "options.refusal_ms = 0 tries them all";
  std::string text = "; " + to_text(offers);
  if (offers.known == 0) text = "; a smaller batch or model is needed";
  text += largest_result(shape.planners[largest]->graph(), plans_->budget_bytes());
  if (!program_->cuts_batches()) text += "; with TrainedProgram::micro_batch a step can run in several micro-batches";
  return text;
}

}  // namespace thimble::nn
