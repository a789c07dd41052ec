#include <thimble/nn/trainer/trainer_run.h>

#include <algorithm>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/step/read.h>

namespace thimble::nn::trainer_detail {
namespace trainer_run_detail {

/// The batch of a step, for a scope.
class HeldBatch {
 public:
  HeldBatch(ErasedRun& run, std::int64_t step) : run_(run) {
    const PathScope path("batch");
    run_.take_batch(step);
  }
  ~HeldBatch() { run_.drop_batch(); }
  HeldBatch(const HeldBatch&) = delete;
  HeldBatch& operator=(const HeldBatch&) = delete;

 private:
  ErasedRun& run_;
};

/// Modules in evaluation mode, for a scope.
class Evaluating {
 public:
  explicit Evaluating(std::vector<Module*> modules) : modules_(std::move(modules)) {
    for (Module* const module : modules_) module->eval();
  }
  ~Evaluating() {
    for (Module* const module : modules_) module->train();
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<Module*> modules_;
};

}  // namespace trainer_run_detail

TrainerRun::TrainerRun(const ErasedProgram& program, const TrainerOptions& options, Device device, RunRequest request,
                       std::int64_t first_step)
    : program_(program),
      trainer_options_(options),
      device_(device),
      request_(std::move(request)),
      generator_(options.seed),
      part_count_(program.part_names().size()),
      options_(options.step),
      placed_(PlacedArena::find(*current_resource(device))),
      first_step_(first_step),
      steps_(first_step) {
  const GeneratorScope scope(generator_);
  run_ = program_.make(device_);
  if (options.loss_scale) scaler_ = std::make_unique<optim::GradScaler>(*options.loss_scale);
  options_.scaler = scaler_.get();
  // Without a placed arena nothing but the machine bounds this run, and one that meets that bound is over either way.
  if (options_.fuses_optimizer == FusedUpdate::secured && placed_ == nullptr && !device_.is_dry) {
    options_.fuses_optimizer = FusedUpdate::unsecured;
  }
  losses_.assign(request_.only_part ? 1 : part_count_, 0);
  if (device_.is_dry && !options.resume.empty()) visit_state();  // as it is loaded
}

std::int64_t TrainerRun::batch_step() const {
  if (request_.batch_steps.empty()) return steps_;
  return request_.batch_steps[static_cast<std::size_t>(steps_) % request_.batch_steps.size()];
}

const std::string& TrainerRun::next_key() {
  if (key_) return *key_;
  // What the dry batch draws is not drawn from the run's generator, and its bytes are none of a dry run's.
  Generator scratch(trainer_options_.seed);
  const GeneratorScope scope(scratch);
  const ResourceScope elsewhere(default_resource(dry(device_)));
  key_ = program_.key(batch_step(), dry(device_));
  return *key_;
}

/// Null where no plans are followed.
const ShapePlan* TrainerRun::next_shape() {
  if (request_.shapes == nullptr) return nullptr;
  const std::string& key = next_key();
  for (const std::unique_ptr<ShapePlan>& shape : *request_.shapes) {
    if (shape->key == key) return shape.get();
  }
  throw PlanError("trainer: no plan of batches with " + key);
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
  StepOptions options = options_;
  if (shape != nullptr) {
    options.recording.plan = shape->parts[part].tape;
    if (options.recording.plan && options.recording.plan->offloads()) options.recording.tier = tier_;
  }
  optim::Optimizer& optimizer = run_->optimizer(part);
  if (trainer_options_.rate) optimizer.set_rate(trainer_options_.rate(steps_));
  const Tensor loss = training_step(
      optimizer, [&](std::int64_t i) { return run_->loss(part, i, options.micro_batches); }, options);
  losses_[request_.only_part ? 0 : part] = read_value(loss);
  if (part_count_ > 1) free_gradients();  // this part's loss may have led to another's parameters
}

void TrainerRun::step() {
  const GeneratorScope scope(generator_);
  const ShapePlan* const shape = next_shape();
  std::optional<PlacedArena::Step> replay;
  if (shape != nullptr) make_tier(*shape);
  if (placed_ != nullptr && shape == nullptr) {
    replay.emplace(*placed_);
  } else if (placed_ != nullptr) {
    const std::size_t last = shape->placement.size() - 1;
    const auto step = static_cast<std::size_t>(steps_ - first_step_);
    replay.emplace(*placed_, shape->first_plan + std::min(step, last));
  }
  {
    const trainer_run_detail::HeldBatch batch(*run_, batch_step());
    if (request_.only_part) {
      update_part(*request_.only_part, shape);
    } else {
      for (std::size_t part = 0; part < part_count_; ++part) update_part(part, shape);
    }
  }
  ++steps_;
  key_.reset();
  replay.reset();
  if (placed_ != nullptr) placed_->require_kept();
}

double TrainerRun::evaluate() {
  const GeneratorScope scope(generator_);
  const PathScope path("evaluate");
  const NoGrad off;
  const ParameterUse use;
  if (placed_ != nullptr) placed_->release_region();
  const PassScope pass(generator_);
  generator_.start_pass();  // every evaluation draws the same
  const trainer_run_detail::Evaluating mode(run_->modules());
  return run_->evaluate();
}

void TrainerRun::finish(FunctionRef<void()> step) {
  const bool saves = !trainer_options_.save.empty();
  if (!program_.evaluates() && !saves) return;
  const auto between = [&] {
    if (program_.evaluates()) evaluate();
    if (saves) visit_state();
  };
  between();
  step();
  between();
}

void TrainerRun::visit_state() {
  if (placed_ != nullptr) placed_->release_region();
  for (std::size_t part = 0; part < part_count_; ++part) {
    nn::visit_state(*run_->modules().front(), run_->optimizer(part));
  }
}

void TrainerRun::save(const std::string& path) {
  if (placed_ != nullptr && run_->optimizer(0).updates_one_by_one()) placed_->release_region();
  save_checkpoint(path, *run_->modules().front(), run_->optimizer(0), generator_, {}, scaler_.get());
}

void TrainerRun::load(const std::string& path) {
  load_checkpoint(path, *run_->modules().front(), run_->optimizer(0), generator_, scaler_.get());
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
  std::size_t bytes = tier_ ? tier_->statistics().committed_bytes : 0;
  if (const Tier* const tier = options_.recording.tier.get()) bytes += tier->statistics().committed_bytes;
  std::vector<const ParameterStore*> stores;
  for (std::size_t part = 0; part < part_count_; ++part) {
    const optim::Optimizer& optimizer = run_->optimizer(part);
    if (const Tier* const tier = optimizer.tier().get()) bytes += tier->statistics().committed_bytes;
    for (const ParameterStore* const store : optimizer.parameter_stores()) {
      if (std::find(stores.begin(), stores.end(), store) != stores.end()) continue;  // of an earlier part, too
      stores.push_back(store);
      bytes += store->bytes_elsewhere();
    }
  }
  return bytes;
}

}  // namespace thimble::nn::trainer_detail
