#include <thimble/nn/trainer/trainer_run.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/shard_store.h>
#include <thimble/memory/offload/tier_store.h>
#include <thimble/memory/process/host_limits.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/units.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/layers/module.h>
#include <thimble/nn/step/read.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>

namespace thimble::nn {
namespace {

/// Holds the batch of a step.
class HeldBatch {
 public:
  HeldBatch(ProgramRun& run, std::int64_t step) : run_(run) {
    const PathScope path("batch");
    run_.take_batch(step);
  }
  ~HeldBatch() { run_.drop_batch(); }
  HeldBatch(const HeldBatch&) = delete;
  HeldBatch& operator=(const HeldBatch&) = delete;

 private:
  ProgramRun& run_;
};

/// Sets modules and functions to evaluation mode, then restores each module's mode.
class Evaluating {
 public:
  explicit Evaluating(const std::vector<Module*>& modules) {
    for (Module* const module : modules) {
      module->for_each_module([&](Module& m) { modes_.emplace_back(&m, m.is_training()); });
      module->eval();
    }
  }
  ~Evaluating() {
    for (const auto& [module, is_training] : modes_) module->train(is_training);  // a module's children come after it
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  EvaluationScope functions_;
  std::vector<std::pair<Module*, bool>> modes_;
};

// Metadata of a checkpoint: the state of optim::Plateau; the least loss of an evaluation, and the number of later ones.
constexpr const char *plateau_key = "trainer.plateau", *best_key = "trainer.best";

/// With enough digits to restore the number exactly.
std::string text_of(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

}  // namespace

std::map<std::string, std::string> settings_of(const TrainerOptions& options, const std::string& part,
                                               const optim::Optimizer& optimizer,
                                               const std::vector<optim::Setting>& groups) {
  std::map<std::string, std::string> settings{
      {"trainer.part", part},
      {"trainer.clip_norm", text_of(options.step.clip_norm)},
      {"trainer.micro_batches", std::to_string(options.all_micro_batches())},
      {"trainer.rate", options.rate ? "a function of the step" : "the optimizer's"},
  };
  for (const optim::Setting& s : optimizer.settings()) settings["trainer.optimizer." + s.name] = text_of(s.value);
  for (const optim::Setting& s : groups) settings["trainer.group." + s.name] = text_of(s.value);
  if (options.plateau) {
    settings["trainer.plateau.factor"] = text_of(options.plateau->factor);
    settings["trainer.plateau.patience"] = std::to_string(options.plateau->patience);
    settings["trainer.plateau.threshold"] = text_of(options.plateau->threshold);
    settings["trainer.plateau.least_factor"] = text_of(options.plateau->least_factor);
  }
  if (options.loss_scale) {
    const optim::GradScalerOptions& scale = *options.loss_scale;
    settings["trainer.loss_scale.is_dynamic"] = text_of(scale.is_dynamic ? 1 : 0);
    settings["trainer.loss_scale.growth"] = text_of(scale.growth);
    settings["trainer.loss_scale.interval"] = std::to_string(scale.interval);
    settings["trainer.loss_scale.backoff"] = text_of(scale.backoff);
    settings["trainer.loss_scale.most"] = text_of(scale.most);
    settings["trainer.loss_scale.least"] = text_of(scale.least);
  }
  return settings;
}

bool is_state_key(const std::string& key) {
  return key == rate_step_key || key == skipped_batches_key || key == updates_before_key || key == plateau_key ||
         key == best_key;
}

std::map<std::string, std::string> TrainerRun::settings() {
  const std::vector<std::string> names = program_.part_names();
  const auto of_part = [&](std::size_t part) {
    const optim::Optimizer& optimizer = run_->optimizer(part);
    return settings_of(trainer_options_, names[part], optimizer,
                       request_.whole != nullptr ? request_.whole->groups[part] : optimizer.group_settings());
  };
  std::map<std::string, std::string> all = of_part(0);
  const std::string of_first = "trainer.";
  for (std::size_t part = 1; part < part_count_; ++part) {
    const std::string own = of_first + std::to_string(part) + ".";
    for (const auto& [key, value] : of_part(part)) {
      all[own + key.substr(of_first.size())] = value;
    }
  }
  return all;
}

RankFiles ProgramRun::rank_files() { throw PlanError("program: it joins no ranks"); }

TrainerRun::TrainerRun(const AnyProgram& program, const TrainerOptions& options, memory::Device device,
                       RunRequest request, std::int64_t first_step, std::int64_t first_skipped)
    : program_(program),
      trainer_options_(options),
      device_(device),
      request_(std::move(request)),
      generator_(options.seed),
      part_count_(program.part_names().size()),
      options_(options.step),
      placed_(memory::PlacedArena::find(*current_resource(device))),
      first_step_(first_step),
      steps_(first_step),
      skipped_(first_skipped) {
  const GeneratorScope scope(generator_);
  make_program();
  if (options.loss_scale) scaler_ = std::make_unique<optim::GradScaler>(*options.loss_scale);
  options_.scaler = scaler_.get();
  options_.stage = run_->stage();
  // Without a placed arena only the machine bounds this run, and running out of memory ends it in either mode.
  if (options_.fuses_optimizer == FusedUpdate::secured && placed_ == nullptr && !device_.is_dry) {
    options_.fuses_optimizer = FusedUpdate::unsecured;
  }
  if (options.plateau) plateau_.emplace(*options.plateau);
  for (std::size_t part = 0; part < part_count_; ++part) rates_.push_back(run_->optimizer(part).rate());
  losses_.assign(request_.only_part ? 1 : part_count_, 0);
  if (device_.is_dry && !options.resume.empty()) {
    visit_load();
    for (std::size_t part = 0; part < part_count_; ++part) {
      optim::Optimizer& optimizer = run_->optimizer(part);
      optimizer.set_step_count(optimizer.step_count() + request_.updates);
    }
  }
  if (options.captures_steps && (device_.is_dry || options.resume.empty())) hold_batch();
  for (const Module* const module : run_->modules()) {
    for (const NamedTensor& p : module->parameters()) {
      const auto has = [&](std::size_t part) {
        const dist::DataParallel* const ranks = parallel(part);
        return (ranks != nullptr ? ranks->leaves() : run_->optimizer(part).leaves()).has(p.tensor.leaf().get());
      };
      bool is_trained = p.tensor.requires_grad();
      for (std::size_t part = 0; part < part_count_; ++part) is_trained = is_trained || has(part);
      if (!is_trained) constants_.push_back({p.name, p.tensor});
    }
  }
}

namespace {

/// Throws ValueError if a name in `sharded` matches no layer, or one of the wrong kind.
void check_sharded(const std::vector<Module*>& modules, const std::vector<ShardedChild>& sharded) {
  const auto refuse = [](const ShardedChild& child, const std::string& expected) {
    throw ValueError("trainer: options.ranks.sharded: " + quote(child.name) + ": expected " + expected);
  };
  const auto is_replacement = [](const Module& m) {
    return dynamic_cast<const ShardedLayer*>(&m) != nullptr ||
           dynamic_cast<const VocabularyParallelEmbedding*>(&m) != nullptr;
  };
  for (const ShardedChild& child : sharded) {
    bool is_there = false;
    for (Module* const module : modules) {
      module->for_each_module([&](Module& m) {
        const auto* const layer = dynamic_cast<Layer*>(&m);
        if (layer == nullptr || is_replacement(m) || !ends_as(path_name(m.path()), child.name)) return;
        const Layer* const other = layer->replacement();
        const bool is_linear = dynamic_cast<const Linear*>(layer) != nullptr;
        const bool is_drop = dynamic_cast<const Dropout*>(layer) != nullptr;
        const bool is_table = dynamic_cast<const VocabularyParallelEmbedding*>(other) != nullptr;
        if (child.kind == Sharding::vocabulary ? !is_table : child.kind == Sharding::element ? !is_drop : !is_linear) {
          refuse(child, child.kind == Sharding::vocabulary ? "an embedding"
                        : child.kind == Sharding::element  ? "a dropout"
                                                           : "a linear layer");
        }
        is_there = is_there || other != nullptr;
      });
    }
    if (!is_there) refuse(child, "the end of the path of a layer of the model");
  }
}

}  // namespace

void TrainerRun::make_model(std::shared_ptr<ParameterStore> store) {
  const RankOptions& ranks = trainer_options_.ranks;
  if (ranks.tensor_parallel > 1) {
    shards_ = std::make_shared<ShardRules>(dist::ShardGroup{ranks.tensor_parallel, group_.get()}, ranks.sharded);
  }
  TensorOptions on = trainer_options_.layers;
  on.device = device_;
  if (shards_ != nullptr) on.rules = shards_;
  const LayerScope layers(on);
  const ParameterStoreScope scope(store);
  run_ = program_.make(device_);
  if (shards_ == nullptr) return;
  for (Module* const module : run_->modules()) shards_->finish(*module);
  check_sharded(run_->modules(), ranks.sharded);
}

/// Makes model and optimizers; on several ranks with this rank's shards.
void TrainerRun::make_program() {
  const OffloadOptions& away = trainer_options_.offload;
  const auto make_tier = [&] { return trainer_options_.planner.make_tier(device_); };
  if (away.gradients) options_.gradient_tier = make_tier();
  std::optional<optim::StateTierScope> state_tiers;
  if (away.optimizer) state_tiers.emplace(make_tier);
  if (request_.whole == nullptr) {
    std::shared_ptr<ParameterStore> store;
    if (away.parameters) {
      store = std::make_shared<memory::TierStore>(make_tier(), memory::UnitOptions{.read_ahead = away.read_ahead});
    }
    make_model(std::move(store));
    return run_->make_optimizers();
  }
  const RankOptions& options = trainer_options_.ranks;
  if (device_.is_dry) dry_ranks_ = dist::make_dry(request_.rank, options.ranks->size());
  dist::Communicator* const all = device_.is_dry ? dry_ranks_.get() : options.ranks;
  ranks_ = all;
  if (const int degree = options.tensor_parallel; degree > 1) {
    using Place = dist::Communicator::Place;
    group_ = all->split([=](int rank) { return Place{.color = rank / degree, .key = rank}; });
    like_ranks_ = all->split([=](int rank) { return Place{.color = rank % degree, .key = rank}; });
    ranks_ = like_ranks_.get();
  }
  std::shared_ptr<ParameterStore> store;
  if (options.zero == 3) {
    store = std::make_shared<dist::ShardStore>(*ranks_, memory::UnitOptions{.read_ahead = options.read_ahead});
  }
  make_model(std::move(store));
  const auto shards_of = [&](std::vector<optim::Named> parameters) {
    const std::size_t part = parallel_.size();
    if (part == part_count_) throw ValueError("trainer: expected one optimizer for each part of the program, got more");
    dist::DataParallelOptions of_part{.zero = options.zero, .buckets = {.bytes = options.bucket_bytes}};
    of_part.buckets.keeps_parameters = !request_.whole->is_elementwise[part];
    if (group_) of_part.group = {group_.get(), shard_layers(run_->modules(), parameters), all};
    parallel_.push_back(std::make_unique<dist::DataParallel>(*ranks_, std::move(parameters), std::move(of_part)));
    return parallel_.back()->parameters();
  };
  const optim::ParameterReplacement replacement(shards_of);
  run_->make_optimizers();
}

/// The optimizer that makes other tensors now and then; null if none does.
optim::Optimizer* TrainerRun::periodic() const {
  for (std::size_t part = 0; part < part_count_; ++part) {
    if (run_->optimizer(part).period() > 0) return &run_->optimizer(part);
  }
  return nullptr;
}

/// Sums this part's gradients over ranks; null for one rank.
dist::DataParallel* TrainerRun::parallel(std::size_t part) const {
  return parallel_.empty() ? run_->parallel() : parallel_[part].get();
}

/// On several ranks, of the only part.
RankFiles TrainerRun::rank_files() {
  return parallel_.empty() ? run_->rank_files() : RankFiles{request_.whole->state.front()};
}

const std::vector<optim::Named>& TrainerRun::parameters(std::size_t part) const {
  return parallel(part) != nullptr ? parallel(part)->whole() : run_->optimizer(part).parameters();
}

std::vector<bool> TrainerRun::is_frozen() {
  std::vector<bool> all;
  for (std::size_t part = 0; part < part_count_; ++part) {
    for (const optim::Named& p : parameters(part)) all.push_back(!p.tensor.requires_grad());
  }
  return all;
}

void TrainerRun::freeze_as(const std::vector<bool>& is_frozen) {
  std::size_t i = 0;
  for (std::size_t part = 0; part < part_count_ && !is_frozen.empty(); ++part) {
    for (const optim::Named& p : parameters(part)) {
      if (const bool is_now = is_frozen[i++]; p.tensor.requires_grad() == is_now) p.tensor.set_requires_grad(!is_now);
    }
  }
}

/// Throws ValueError for an unfrozen parameter that no optimizer trains.
void TrainerRun::check_unfrozen() const {
  for (const optim::Named& p : constants_) {
    if (!p.tensor.requires_grad()) continue;
    throw ValueError("trainer: " + quote(p.name) +
                     " was unfrozen, and no optimizer has it, so it would stay as it is; make the optimizer of all "
                     "parameters that are ever trained, and freeze some of them afterwards");
  }
}

const ExampleStep& TrainerRun::next_kind() {
  if (!request_.steps.empty()) return request_.steps[static_cast<std::size_t>(steps_) % request_.steps.size()];
  kind_.step = steps_;
  return kind_;
}

const BatchOutline& TrainerRun::next_outline() {
  if (outline_) return *outline_;
  // A dry batch must not draw from the run's generator, nor count in the bytes of a dry run.
  RandomGenerator scratch(trainer_options_.seed);
  const GeneratorScope scope(scratch);
  const ResourceScope elsewhere(default_resource(dry(device_)));
  outline_ = program_.outline(next_kind().step, dry(device_), trainer_options_.all_micro_batches());
  return *outline_;
}

StepKey TrainerRun::next_key() {
  const std::vector<bool>& asked = next_kind().is_frozen;
  return {next_outline().shapes, next_outline().values, asked.empty() ? is_frozen() : asked};
}

/// Null if the run follows no plans.
const ShapePlan* TrainerRun::next_shape() {
  if (request_.shapes == nullptr) return nullptr;
  const StepKey key = next_key();
  for (const std::unique_ptr<ShapePlan>& shape : *request_.shapes) {
    if (shape->is_of(key)) return shape.get();
  }
  throw PlanError("trainer: no plan of batches with " + key.shapes);
}

/// Sizes and weights of this rank's micro-batches, if a step has several; weighted by samples unless the options give
/// weights.
std::vector<optim::MicroBatch> TrainerRun::micro_batches() {
  if (std::vector<optim::MicroBatch> own = run_->weights(options_.micro_batches); !own.empty()) return own;
  const StepOptions& given = trainer_options_.step;
  if (trainer_options_.all_micro_batches() == 1) return given.parts;
  const std::vector<std::int64_t>& samples = next_outline().samples;
  const auto own = [&](std::vector<optim::MicroBatch> all) {
    if (ranks_ == nullptr || all.empty()) return all;
    std::vector<optim::MicroBatch> list;
    for (std::int64_t i = 0; i < options_.micro_batches; ++i) {
      list.push_back(all.at(static_cast<std::size_t>(i * ranks_->size() + ranks_->rank())));
    }
    return list;
  };
  if (samples.empty()) return own(given.parts);  // a `key` hides the samples of its batch
  const auto refuse = [](const std::string& what, std::int64_t got, std::int64_t expected) {
    throw ValueError("trainer: options.step." + what + ": expected " + std::to_string(expected) +
                     " samples, as micro_batch cuts them, got " + std::to_string(got));
  };
  const std::int64_t largest = *std::max_element(samples.begin(), samples.end());
  if (given.micro_samples != 0 && given.micro_samples != largest) {
    refuse("micro_samples", given.micro_samples, largest);
  }
  for (std::size_t i = 0; i < std::min(samples.size(), given.parts.size()); ++i) {
    const std::int64_t told = given.parts[i].samples;
    if (told != samples[i]) refuse("parts[" + std::to_string(i) + "]", told, samples[i]);
  }
  if (!given.parts.empty()) return own(given.parts);
  std::vector<optim::MicroBatch> parts;
  for (const std::int64_t n : samples) parts.push_back({n, static_cast<double>(n)});
  return own(std::move(parts));
}

void TrainerRun::set_rate(std::size_t part, std::int64_t step) {
  if (!trainer_options_.rate && !plateau_) return;
  const double rate = trainer_options_.rate ? trainer_options_.rate(step) : rates_[part];
  run_->optimizer(part).set_rate(rate * rate_factor());
}

bool TrainerRun::is_best(double loss) {
  const bool is_least = !least_loss_ || loss < *least_loss_;
  if (is_least) least_loss_ = loss;
  worse_ = is_least ? 0 : worse_ + 1;
  return is_least;
}

/// Sets the rates at once, so that a checkpoint contains them with the new factor.
void TrainerRun::note_evaluation(double loss) {
  if (!plateau_) return;
  plateau_->add(loss);
  for (std::size_t part = 0; part < part_count_ && rate_step_ >= 0; ++part) set_rate(part, rate_step_);
}

void TrainerRun::make_tier(const ShapePlan& shape) {
  for (const Plan& plan : shape.parts) {
    if (tier_ == nullptr && plan.tape && plan.tape->offloads()) tier_ = plan.make_tier(device_);
  }
}

void TrainerRun::free_gradients() {
  for (std::size_t part = 0; part < part_count_; ++part) run_->optimizer(part).zero_grad();
}

void TrainerRun::update_part(std::size_t part, const ShapePlan* shape) {
  if (shape != nullptr) {
    options_.recording.plan = shape->parts[part].tape;
    const bool offloads = options_.recording.plan && options_.recording.plan->offloads();
    options_.recording.tier = offloads ? tier_ : nullptr;
  }
  options_.parts = micro_batches();
  options_.ranks = parallel(part);
  const std::int64_t first = ranks_ != nullptr ? ranks_->rank() : 0, apart = ranks_ != nullptr ? ranks_->size() : 1;
  optim::Optimizer& optimizer = run_->optimizer(part);
  const double rate_before = optimizer.rate();
  set_rate(part, next_kind().step);
  try {
    const Tensor loss = training_step(
        optimizer,
        [&](std::int64_t i) { return run_->loss(part, i * apart + first, trainer_options_.all_micro_batches()); },
        options_);
    prepare_next();
    // A captured step ends before its loss is read.
    if (!request_.reads_losses || (trainer_options_.captures_steps && device_.is_dry)) return;
    losses_[request_.only_part ? 0 : part] = read_value(loss);
  } catch (...) {
    optimizer.set_rate(rate_before);
    throw;
  }
  if (part_count_ > 1) free_gradients();  // this part's loss may have reached another part's parameters
}

/// Runs the remaining parts of the step. Each draws the same numbers as if none had failed.
void TrainerRun::run_parts(const ShapePlan* shape) {
  if (next_part_ > 0) {
    part_begin_ = generator_;
    generator_ = step_begin_;
  } else {
    step_begin_ = generator_;
  }
  has_begun_ = true;
  std::optional<HeldBatch> batch;
  if (trainer_options_.captures_steps) {
    // A captured step begins with its batch in place; so must the dry run that its placement comes from.
    if (!device_.is_dry) load_batch();
  } else {
    batch.emplace(*run_, next_kind().step);
    if (request_.whole != nullptr && taken_ == 0 && !device_.is_dry) require_same_batch();
  }
  if (next_part_ > 0) generator_ = part_begin_;
  if (request_.only_part) return update_part(*request_.only_part, shape);
  for (; next_part_ < part_count_; ++next_part_) {
    part_begin_ = generator_;
    update_part(next_part_, shape);
  }
  part_begin_ = generator_;
  const PathScope path("after_update");
  run_->after_update();
}

/// Throws ValueError on all ranks if their batches differ.
void TrainerRun::require_same_batch() {
  std::uint64_t own = 0;
  for (const Tensor& t : run_->batch_tensors()) {
    if (t.defined() && (t.device().is_cpu() || t.is_contiguous())) own = 31 * own + digest_of(t).low;
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(trainer_options_.ranks.ranks->size()));
  trainer_options_.ranks.ranks->all_gather(&own, sizeof own, all.data());
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t digest) { return digest != all[0]; });
  if (other == all.end()) return;
  throw ValueError("trainer: batch: expected the batch of step " + std::to_string(steps_) +
                   " to be the same on all ranks, which share out its micro-batches, got other tensors on rank " +
                   std::to_string(other - all.begin()) + " than on rank 0");
}

/// A step that left its plan may find no room; the error must name that cause, not the state of the arena.
void TrainerRun::explain(const OutOfMemory& error) const {
  const memory::PlacedArena::Statistics placed = placed_->statistics();
  const OutOfMemory::Facts& facts = error.facts();
  const auto& first = placed.first_deviation;
  const bool is_first = first && first->step + 1 == placed.steps;
  throw OutOfMemory("trainer: step " + std::to_string(steps_ + 1) + " left its plan (" +
                        (is_first ? to_string(*first) : "at event " + std::to_string(placed.last_deviation)) +
                        ") and then ran out of memory: " + memory::exact_bytes(facts.requested_bytes) + " asked for, " +
                        memory::exact_bytes(facts.in_use_bytes) + " in use of " +
                        memory::exact_bytes(facts.capacity_bytes) +
                        "; a step must ask for the same bytes whenever its batch has the same key",
                    facts);
}

void TrainerRun::rest() noexcept {
  if (recorded_) recorded_->drop();
  if (placed_ != nullptr) placed_->release_region();
}

void TrainerRun::prepare_next() {
  if (device_.is_cuda() && !device_.is_dry && steps_ + 1 < trainer_options_.steps) run_->prepare_batch(steps_ + 1);
}

/// Makes the batch whose addresses captured steps repeat.
void TrainerRun::hold_batch() {
  RandomGenerator scratch(trainer_options_.seed);
  const GeneratorScope scope(scratch);
  const PathScope path("batch");
  run_->take_batch(next_kind().step);
}

void TrainerRun::load_batch() {
  const PathScope path("batch");
  run_->load_batch(next_kind().step);
}

/// CapturedStep begins and ends the placed step.
void TrainerRun::step_captured() {
  const GeneratorScope scope(generator_);
  check_unfrozen();
  const ShapePlan* const shape = next_shape();
  step_begin_ = generator_;
  optim::Optimizer& optimizer = run_->optimizer(0);
  const double rate_before = optimizer.rate();
  try {
    load_batch();
    const std::vector<optim::MicroBatch> parts = micro_batches();
    if (std::any_of(parts.begin(), parts.end(), [&](const optim::MicroBatch& part) { return !(part == parts[0]); })) {
      throw PlanError(
          "trainer: options.captures_steps: the micro-batches of a step that is captured must have as many samples, "
          "and targets that count, as each other; steps that are not captured may differ");
    }
    set_rate(0, next_kind().step);
    if (!recorded_) {
      StepOptions options = options_;
      if (shape != nullptr) options.recording.plan = shape->parts[0].tape;
      if (options.micro_batches > 1 && !parts.empty()) options.micro_samples = parts[0].samples;
      options.parts.clear();
      const auto loss_of = [this](std::int64_t i) { return run_->loss(0, i, options_.micro_batches); };
      recorded_ = std::make_unique<CapturedStep>(*placed_, optimizer, loss_of, options);
    }
    const Tensor loss = recorded_->run();
    captured_launches_ = recorded_->launches();
    prepare_next();
    losses_[0] = read_value(loss);
  } catch (...) {
    optimizer.set_rate(rate_before);
    generator_ = step_begin_;
    throw;
  }
  end_step();
  ++taken_;
  rate_step_ = steps_ - 1;
  placed_->require_kept();
}

void TrainerRun::step() {
  if (request_.is_scheduled && steps_ >= trainer_options_.steps) return;
  if (trainer_options_.captures_steps && placed_ != nullptr) return step_captured();
  const GeneratorScope scope(generator_);
  freeze_as(next_kind().is_frozen);
  check_unfrozen();
  const ShapePlan* const shape = next_shape();
  const std::uint64_t deviations = placed_ != nullptr ? placed_->statistics().deviations : 0;
  // No plan covers the rest of a step that failed in a later part.
  const bool is_rest = next_part_ > 0;
  if (placed_ != nullptr && is_rest) placed_->set_strict(false);
  std::optional<memory::PlacedArena::Step> replay;
  try {
    if (shape != nullptr) make_tier(*shape);
    const optim::Optimizer* const optimizer = periodic();
    const bool is_usual = optimizer != nullptr && optimizer->step_count() % optimizer->period() != 0;
    const std::size_t plan = optimizer != nullptr ? (is_usual ? 1 : 0) : static_cast<std::size_t>(taken_);
    if (placed_ != nullptr && shape == nullptr) {
      if (optimizer == nullptr) replay.emplace(*placed_);
      if (optimizer != nullptr) replay.emplace(*placed_, plan);
    } else if (placed_ != nullptr) {
      replay.emplace(*placed_, shape->first_plan + std::min(plan, shape->placement.size() - 1));
    }
    run_parts(shape);
  } catch (...) {
    if (has_begun_) generator_ = next_part_ == 0 ? step_begin_ : part_begin_;
    replay.reset();
    if (placed_ != nullptr && is_rest) placed_->set_strict(trainer_options_.is_strict);
    if (placed_ == nullptr || placed_->statistics().deviations == deviations) throw;
    try {
      throw;
    } catch (const OutOfMemory& error) {
      explain(error);
    }
  }
  end_step();
  ++taken_;
  rate_step_ = steps_ - 1;
  replay.reset();
  if (placed_ != nullptr && !is_rest) return placed_->require_kept();
  if (placed_ != nullptr) placed_->set_strict(trainer_options_.is_strict);
}

void TrainerRun::end_step() {
  ++steps_;
  next_part_ = 0;
  has_begun_ = false;
  outline_.reset();
}

void TrainerRun::skip() {
  generator_.set_step(generator_.step() + part_count_ - next_part_);
  ++skipped_;
  end_step();
}

void TrainerRun::train_step([[maybe_unused]] std::int64_t step, Progress& progress) {
  this->step();
  progress.losses = losses_;
  for (double& loss : progress.losses) loss = without_sign_of_nan(loss);
  progress.loss = progress.losses.front();
  progress.rate = run_->optimizer(0).rate();
}

std::int64_t TrainerRun::skipped_steps() {
  return skipped_ + (scaler_ != nullptr ? scaler_->state().skipped_steps : 0);
}

std::optional<Evaluation> TrainerRun::evaluate() {
  if (!program_.evaluates()) return std::nullopt;
  const GeneratorScope scope(generator_);
  const PathScope path("evaluate");
  const NoGrad off;
  rest();
  const PassScope pass(generator_);
  generator_.start_pass();  // every evaluation draws the same numbers
  const Evaluating mode(run_->modules());
  return run_->evaluate();
}

/// Whether an action with this interval is due before the last step.
bool TrainerRun::comes_between(std::int64_t every) const {
  return every > 0 && (first_step_ / every + 1) * every < trainer_options_.steps;
}

/// Digest of the arena's blocks, equal for equal layouts.
std::uint64_t TrainerRun::layout() const {
  const memory::Arena* const arena = memory::Arena::find(*current_resource(device_));
  return arena != nullptr ? arena->layout_digest() : 0;
}

void TrainerRun::finish(FunctionRef<void()> step) {
  const TrainerOptions& options = trainer_options_;
  const bool saves = !options.save.empty() || !options.best.empty();
  const auto between = [&] {
    evaluate();
    if (saves) visit_save();
  };
  if (optim::Optimizer* const optimizer = periodic()) {
    const std::int64_t period = optimizer->period();
    const std::int64_t next = (optimizer->step_count() + period - 1) / period * period;
    if (next < options.steps) {
      optimizer->set_step_count(next);
      step();
    }
  }
  if (!request_.is_scheduled) {
    if (!program_.evaluates() && !saves) return;
    between();
    step();
    return between();
  }
  const auto step_on = [&] {
    steps_ = std::min(steps_, options.steps - 1);  // the last step again, if there are no more
    step();
  };
  if (saves && comes_between(options.save_every)) {
    visit_save();
    step_on();
  }
  between();
  if (comes_between(options.evaluate_every)) {
    for (std::uint64_t before = layout(), after = 0;; before = after) {
      step_on();
      between();
      after = layout();
      if (after == before || steps_ == options.steps) break;  // all later steps repeat this one
    }
  }
  run_->end(false);
}

void TrainerRun::end() {
  rest();
  run_->end(true);
}

dist::Communicator::Volume TrainerRun::volume() {
  dist::Communicator::Volume sum{0, 0};
  for (const dist::Communicator* const of :
       {request_.whole != nullptr ? trainer_options_.ranks.ranks : nullptr, group_.get(), like_ranks_.get()}) {
    if (of == nullptr) continue;
    sum.bytes_sent += of->volume().bytes_sent;
    sum.messages += of->volume().messages;
  }
  return sum;
}

void TrainerRun::visit_load() {
  if (placed_ != nullptr) placed_->release_region();
  const std::vector<Module*> modules = run_->modules();
  for (std::size_t i = 0; i < std::max(part_count_, modules.size()); ++i) {
    nn::visit_state(*modules[std::min(i, modules.size() - 1)], run_->optimizer(std::min(i, part_count_ - 1)));
  }
}

CheckpointParts TrainerRun::checkpoint_parts() {
  CheckpointParts parts{run_->modules(), {}};
  for (std::size_t part = 0; part < part_count_; ++part) parts.optimizers.push_back(&run_->optimizer(part));
  return parts;
}

void TrainerRun::visit_save() {
  if (placed_ != nullptr) placed_->release_region();
  Module& module = *run_->modules().front();
  if (dist::DataParallel* const all = parallel(0)) {
    const RankFiles files = rank_files();
    return nn::visit_save(module, *all, run_->optimizer(0), files.whole, files.later);
  }
  if (part_count_ == 1 && run_->modules().size() == 1) return nn::visit_save(module, run_->optimizer(0));
  visit_load();
}

void TrainerRun::refuse_checkpoint(const std::string& why) {
  if (parallel(0) == nullptr) return;
  rest();
  const RankFiles files = rank_files();
  nn::refuse_checkpoint(*run_->modules().front(), *parallel(0), run_->optimizer(0), files.whole, why, files.later);
}

Metadata TrainerRun::metadata() {
  if (std::optional<Metadata> own = run_->metadata()) return *own;
  Metadata metadata = settings();
  metadata[skipped_batches_key] = std::to_string(skipped_);
  const std::int64_t before = run_->optimizer(0).step_count() + skipped_steps() - steps_;
  if (before > 0) metadata[updates_before_key] = std::to_string(before);
  if (rate_step_ >= 0) metadata[rate_step_key] = std::to_string(rate_step_);
  if (plateau_) {
    const optim::Plateau::State& state = plateau_->state();
    metadata[plateau_key] = text_of(state.least_loss) + " " + std::to_string(state.worse) + " " + text_of(state.factor);
  }
  if (least_loss_) {
    metadata[best_key] = text_of(*least_loss_) + " " + std::to_string(worse_);
  }
  return metadata;
}

void TrainerRun::write_checkpoint(const std::string& path) {
  const CheckpointParts parts = checkpoint_parts();
  dist::DataParallel* const all = parallel(0);
  const auto is_away = [](const optim::Optimizer* optimizer) { return optimizer->updates_one_by_one(); };
  if (all != nullptr || std::any_of(parts.optimizers.begin(), parts.optimizers.end(), is_away)) rest();
  const bool overwrites = trainer_options_.overwrites;
  if (all == nullptr) return save_checkpoint(path, parts, generator_, metadata(), scaler_.get(), overwrites);
  const RankFiles files = rank_files();
  save_checkpoint(path, *parts.modules.front(), *all, run_->optimizer(0), files.whole, generator_, metadata(),
                  scaler_.get(), files.later, overwrites);
}

void TrainerRun::load(const std::string& path) {
  const CheckpointParts parts = checkpoint_parts();
  std::vector<double> rates;
  for (const optim::Optimizer* const optimizer : parts.optimizers) rates.push_back(optimizer->rate());
  const auto load_shards = [&] {
    const RankFiles files = rank_files();
    return load_checkpoint(path, *parts.modules.front(), run_->optimizer(0), files.whole, generator_, scaler_.get(),
                           files.others);
  };
  const Metadata metadata =
      parallel(0) == nullptr ? load_checkpoint(path, parts, generator_, scaler_.get()) : load_shards();
  if (const auto found = metadata.find(plateau_key); plateau_ && found != metadata.end()) {
    optim::Plateau::State state;
    char* end = nullptr;
    state.least_loss = std::strtod(found->second.c_str(), &end);
    state.worse = std::strtoll(end, &end, 10);
    state.factor = std::strtod(end, &end);
    if (*end != '\0' || !(state.factor > 0 && state.factor <= 1) || state.worse < 0) {
      throw ValueError("trainer: resume: " + quote(path) + ": " + plateau_key +
                       ": expected a loss, a count and a factor, got " + quote(found->second));
    }
    plateau_->set_state(state);
  }
  if (const auto found = metadata.find(best_key); found != metadata.end()) {
    char* end = nullptr;
    least_loss_ = std::strtod(found->second.c_str(), &end);
    worse_ = std::strtoll(end, &end, 10);
    if (*end != '\0' || std::isnan(*least_loss_) || worse_ < 0) {
      throw ValueError("trainer: resume: " + quote(path) + ": " + best_key + ": expected a loss and a count, got " +
                       quote(found->second));
    }
  }
  for (std::size_t i = 0; i < rates.size() && trainer_options_.changes_options; ++i) {
    parts.optimizers[i]->set_rate(rates[i]);
  }
  if (trainer_options_.captures_steps && !device_.is_dry) hold_batch();
}

std::int64_t TrainerRun::parameters() const {
  std::int64_t count = 0;
  for (const Module* const module : run_->modules()) count += module->parameter_count();
  return count;
}

RunView TrainerRun::view() {
  RunView view;
  view.losses = losses_;
  for (std::size_t part = 0; part < part_count_; ++part) view.optimizers.push_back(&run_->optimizer(part));
  const std::vector<Module*> modules = run_->modules();
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (NamedTensor& buffer : modules[m]->buffers()) {
      if (modules.size() > 1) buffer.name = "module " + std::to_string(m) + ": " + buffer.name;
      view.buffers.push_back(std::move(buffer));
    }
  }
  view.generator = &generator_;
  view.scaler = scaler_.get();
  return view;
}

std::size_t TrainerRun::tier_bytes() const {
  std::set<const memory::Tier*> tiers{tier_.get(), options_.recording.tier.get(), options_.gradient_tier.get()};
  std::set<const ParameterStore*> stores;  // parts may share them
  for (std::size_t part = 0; part < part_count_; ++part) {
    tiers.insert(run_->optimizer(part).tier().get());
    for (const ParameterStore* const store : run_->optimizer(part).parameter_stores()) stores.insert(store);
  }
  std::size_t bytes = 0;
  for (const memory::Tier* const tier : tiers) bytes += tier != nullptr ? tier->statistics().committed_bytes : 0;
  for (const ParameterStore* const store : stores) bytes += store->bytes_elsewhere();
  return bytes;
}

namespace {

/// Gathers the figures of all ranks on every rank.
std::vector<RankFigures> gather_figures(const RunReport& report, const memory::Stack& stack,
                                        const dist::Communicator::Volume& volume, dist::Communicator* ranks) {
  if (ranks == nullptr) return {};
  const RankFigures own{report.predicted_peak_bytes,
                        report.measured_peak_bytes,
                        stack.ledger->peak_by_category(),
                        report.state_bytes,
                        report.measured_tier_bytes,
                        report.process_peak_bytes,
                        volume.bytes_sent,
                        volume.messages};
  std::vector<RankFigures> all(static_cast<std::size_t>(ranks->size()));
  ranks->all_gather(&own, sizeof(own), all.data());
  return all;
}

}  // namespace

RunArena::RunArena(const TrainerOptions& options, RunNeed need) : options_(options) {
  if (options.device == cpu) watch_.emplace();
  if (watch_ && need.outside) {
    outside_ = memory::outside_bytes(watch_->base(), *need.outside);
    memory::require_room({need.peak_bytes, outside_});
  }
  memory::Options of_stack;
  of_stack.arena.capacity_bytes = need.budget_bytes;
  if (need.is_final && memory::has_address_limit()) of_stack.arena.reserve_bytes = need.peak_bytes;
  of_stack.plans = std::move(need.placements);
  stack_ = memory::make_resource(options.device, std::move(of_stack));
  if (stack_.placed) stack_.placed->set_strict(options.is_strict);
}

void RunArena::run(TrainerRun& run, const LoopOptions& looped, const TrainObserver& observer,
                   const TrainControl& control, RunReport& report) const {
  run_loop(run, options_, looped, stack_, report, control, observer);
}

void RunArena::measure(TrainerRun& run, dist::Communicator* ranks, RunReport& report) const {
  for (const optim::Optimizer* const optimizer : run.view().optimizers) report.state_bytes += optimizer->state_bytes();
  report.captured_launches = run.captured_launches();
  if (run.scaler() != nullptr) report.scaler = run.scaler()->state();
  report.measured_peak_bytes = stack_.arena->statistics().peak_committed_bytes;
  if (stack_.placed) report.placed = stack_.placed->statistics();
  report.measured_tier_bytes = run.tier_bytes();
  report.rss_peak_bytes = process::peak_rss_bytes();
  report.outside = outside_;
  report.process_budget_bytes = options_.process_budget_bytes;
  if (watch_) {
    report.process_peak_bytes = watch_->peak_bytes();
    report.control_group_peak_bytes = memory::control_group_peak_bytes();
    report.arena_rss_bytes = process::mapping_rss_bytes(stack_.arena->base(), stack_.arena->reserved_bytes());
  }
  if (options_.device.is_cuda()) {
    const std::size_t others = memory::statistics(options_.device).committed_bytes;  // allocated outside the run
    report.device_use = memory::device_use(options_.device, stack_.arena->statistics().committed_bytes + others);
    report.libraries = kernels::device_runtime(options_.device).library_use();
  }
  report.ranks = gather_figures(report, stack_, run.volume(), ranks);
}

}  // namespace thimble::nn
