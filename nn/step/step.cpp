#include <thimble/nn/step/step.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/optim/accumulate.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/offload_gradients.h>
#include <thimble/optim/pipeline.h>
#include <thimble/optim/ranks.h>

namespace thimble::nn {
namespace step_detail {

[[noreturn]] void refuse_fusing(const std::string& why) {
  throw PlanError("training_step: the optimizer cannot be fused " + why);
}

[[noreturn]] void refuse_offloading(const std::string& why) {
  throw PlanError("training_step: gradients cannot wait in a tier " + why);
}

void check_offloading(const optim::Optimizer& optimizer, const StepOptions& options) {
  if (options.fuses_optimizer != FusedUpdate::off) {
    refuse_offloading("with a fused optimizer: each is used and freed as soon as it is complete");
  }
  if (options.micro_batches > 1) {
    refuse_offloading("with " + std::to_string(options.micro_batches) +
                      " micro-batches: all of them add to every gradient");
  }
  if (options.scaler != nullptr) {
    refuse_offloading("with a loss scaler: it judges gradients that are here");
  }
  for (const optim::Named& p : optimizer.parameters()) {
    if (p.tensor.grad().defined()) {
      refuse_offloading("while " + p.name + " already has one: backward adds to a gradient that is here");
    }
  }
}

/// Null where no placed arena stands behind the parameters' resource.
const PlacedArena* placed_behind(const optim::Optimizer& optimizer) {
  if (optimizer.parameters().empty()) return nullptr;
  return PlacedArena::find(*current_resource(optimizer.parameters().front().tensor.device()));
}

// Plans whose steps never begin would be left in silence, and with them the budget they were made for.
void check_placed_step(const optim::Optimizer& optimizer) {
  const PlacedArena* const placed = placed_behind(optimizer);
  if (placed == nullptr || placed->is_in_step()) return;
  throw PlanError(
      "training_step: the memory of this step is planned, and no planned step has begun; let `const PlacedArena::Step "
      "step(*stack.placed);` (memory/policies/placed.h) live from before the step's batch is made until its loss is "
      "gone");
}

void check_fusing(const optim::Optimizer& optimizer, const StepOptions& options) {
  if (options.clip_norm > 0) {
    refuse_fusing("with clip_norm " + std::to_string(options.clip_norm) +
                  ": the global norm is known when all gradients are there");
  }
  if (options.micro_batches > 1) {
    refuse_fusing("with " + std::to_string(options.micro_batches) +
                  " micro-batches: gradients are complete after the last one");
  }
  if (options.scaler != nullptr && options.scaler->is_dynamic()) {
    refuse_fusing("with a dynamic loss scale: whether the step is skipped is known when all gradients are there");
  }
  for (const optim::Named& p : optimizer.parameters()) {
    if (p.tensor.grad().defined()) {
      refuse_fusing("while " + p.name + " has a gradient of before: a step that fails could not put it back");
    }
  }
  if (options.fuses_optimizer != FusedUpdate::secured || optimizer.parameters().empty()) return;
  const PlacedArena* const placed = placed_behind(optimizer);
  const bool is_dry = optimizer.parameters().front().tensor.device().is_dry;
  if (placed != nullptr ? !placed->is_replaying() : !is_dry) {
    refuse_fusing(
        "securely: no placed step is being replayed, so memory could run out after the first update; "
        "FusedUpdate::unsecured allows that");
  }
}

void check_ranks(const StepOptions& options) {
  const auto refuse = [](const char* what) {
    throw PlanError(std::string("training_step: several ranks cannot make a step together with ") + what);
  };
  if (options.fuses_optimizer != FusedUpdate::off) refuse("a fused optimizer: gradients are summed over ranks first");
  if (options.gradient_tier) refuse("gradients in a tier: they go to the ranks that sum them");
  if (options.judge != nullptr) refuse("a captured step");
}

/// What ranks and the stage have of a step goes with it.
class RanksStep {
 public:
  explicit RanksStep(const StepOptions& options) : ranks_(options.ranks), stage_(options.stage) {}
  ~RanksStep() {
    if (stage_ != nullptr) stage_->drop();
    if (ranks_ != nullptr) ranks_->drop_gradients();
  }
  RanksStep(const RanksStep&) = delete;
  RanksStep& operator=(const RanksStep&) = delete;

 private:
  optim::Ranks* ranks_;
  optim::Pipeline* stage_;
};

/// Updates parameters as their gradients come.
class Updates {
 public:
  Updates(optim::Optimizer& optimizer, bool is_secured)
      : optimizer_(optimizer), placed_(is_secured ? placed_behind(optimizer) : nullptr) {
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      by_leaf_.emplace_back(optimizer.parameters()[i].tensor.leaf().get(), i);
    }
    std::sort(by_leaf_.begin(), by_leaf_.end());
  }

  void on_gradient(const std::shared_ptr<Leaf>& leaf) {
    if (!leaf->grad.defined()) return;
    if (done_ == 0 && placed_ != nullptr && !placed_->is_replaying()) return;  // finish() does it
    const auto first = std::lower_bound(by_leaf_.begin(), by_leaf_.end(), std::pair(leaf.get(), std::size_t{0}));
    auto end = first;
    while (end != by_leaf_.end() && end->first == leaf.get()) ++end;
    const Tensor& parameter = optimizer_.parameters()[first->second].tensor;
    // Other tensors with its bytes are still to be read in backward.
    if (parameter.storage() && parameter.storage()->is_held_for_backward()) return;
    for (auto p = first; p != end; ++p) update(p->second);
    leaf->grad = Tensor();
  }

  /// What is left when backward is over; the count goes up even where nothing had a gradient, as in step().
  void finish() {
    for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
      if (optimizer_.parameters()[i].tensor.grad().defined()) update(i);
    }
    if (done_ == 0) optimizer_.begin_step();
    optimizer_.end_step();
  }

  std::size_t done() const noexcept { return done_; }

  void update(std::size_t index) {
    const Storage* const storage = optimizer_.parameters()[index].tensor.storage().get();
    const std::uint32_t version = storage != nullptr ? storage->version() : 0;
    const std::int64_t before = optimizer_.step_count();
    if (done_ == 0) optimizer_.begin_step();
    try {
      optimizer_.step_one(index);
    } catch (...) {
      const bool is_updated = storage != nullptr && storage->version() != version;  // but its state did not go
      if (is_updated) ++done_;
      if (done_ == 0) optimizer_.set_step_count(before);
      throw;
    }
    ++done_;
  }

 private:
  optim::Optimizer& optimizer_;
  const PlacedArena* placed_;  // null: nothing to look at before the first update
  std::vector<std::pair<Leaf*, std::size_t>> by_leaf_;
  std::size_t done_ = 0;
};

[[noreturn]] void throw_partial(const std::exception& error, std::size_t done, std::size_t all) {
  std::throw_with_nested(PartialUpdateError("training_step: failed when " + std::to_string(done) + " of " +
                                                std::to_string(all) +
                                                " parameters were updated, and they stay so: " + error.what(),
                                            done, all));
}

/// All updates at the end of a step. They can fail where the optimizer's state or parameters are away.
void update_all(optim::Optimizer& optimizer) {
  if (!optimizer.updates_one_by_one()) return optimizer.step();
  Updates updates(optimizer, false);
  try {
    updates.finish();
  } catch (const std::exception& error) {
    if (updates.done() == 0) throw;
    throw_partial(error, updates.done(), optimizer.parameters().size());
  }
}

std::optional<double> loss_scale(const StepOptions& options) {
  return options.scaler != nullptr ? std::optional(options.scaler->scale()) : std::nullopt;
}

/// The optimizer's factor, for a scope.
class GradientFactor {
 public:
  GradientFactor(optim::Optimizer& optimizer, double factor)
      : optimizer_(optimizer), before_(optimizer.gradient_factor()) {
    optimizer_.set_gradient_factor(before_ * factor);
  }
  ~GradientFactor() { optimizer_.set_gradient_factor(before_); }
  GradientFactor(const GradientFactor&) = delete;
  GradientFactor& operator=(const GradientFactor&) = delete;

 private:
  optim::Optimizer& optimizer_;
  double before_;
};

/// The sums of squares of all ranks' gradients.
Tensor square_sums(const optim::Optimizer& optimizer, const StepOptions& options) {
  const Tensor own = options.ranks->gradient_square_sums(optimizer);
  return options.stage != nullptr ? options.stage->sum_squares(own) : own;
}

void clip(optim::Optimizer& optimizer, const StepOptions& options) {
  if (options.clip_norm == 0) return;
  if (options.ranks == nullptr) {
    optim::clip_grad_norm(optimizer.parameters(), options.clip_norm);
    return;
  }
  const Tensor sums = square_sums(optimizer, options);
  if (sums.defined()) optim::clip_gradients(optimizer.parameters(), sums, options.clip_norm);
}

/// The update of a step whose loss was scaled, or none.
void update_scaled(optim::Optimizer& optimizer, const StepOptions& options, const Tensor& loss,
                   Transaction& transaction) {
  StepJudge* const judge = options.scaler->looks(options.clip_norm) ? options.judge : nullptr;
  const auto verdict_of = [&] {
    if (judge != nullptr) return judge->judge(loss, optim::gradient_square_sums(optimizer.parameters()));
    if (options.ranks == nullptr) return options.scaler->judge(optimizer.parameters(), options.clip_norm);
    const bool looks = options.scaler->looks(options.clip_norm);
    return options.scaler->judge_sums(looks ? square_sums(optimizer, options) : Tensor(), options.clip_norm);
  };
  const optim::GradScaler::Verdict verdict = verdict_of();
  if (verdict.is_skipped) {
    transaction.drop_state();
  } else {
    const GradientFactor factor(optimizer, verdict.gradient_factor);
    update_all(optimizer);
  }
  if (judge == nullptr) options.scaler->record(verdict);
}

Tensor run_fused(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of, const StepOptions& options,
                 const optim::RecordingOptions& recording) {
  Updates updates(optimizer, options.fuses_optimizer == FusedUpdate::secured);
  const auto update = [&](const std::shared_ptr<Leaf>& leaf) { updates.on_gradient(leaf); };
  const LeafHook hook(update);
  try {
    const Tensor loss =
        optim::accumulate_gradients(1, options.micro_samples, loss_of, recording, &hook, loss_scale(options));
    updates.finish();
    return loss;
  } catch (const std::exception& error) {
    if (updates.done() == 0) throw;
    throw_partial(error, updates.done(), optimizer.parameters().size());
  }
}

Tensor run_offloading(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                      const StepOptions& options, const optim::RecordingOptions& recording) {
  optim::OffloadedGradients away(optimizer.parameters(), options.gradient_tier, options.clip_norm);
  const auto take = [&](const std::shared_ptr<Leaf>& leaf) { away.take(leaf); };
  const LeafHook hook(take);
  const Tensor loss = optim::accumulate_gradients(1, options.micro_samples, loss_of, recording, &hook);
  Updates updates(optimizer, false);
  try {
    for (std::size_t i = 0; i < away.size(); ++i) {
      const Tensor& parameter = optimizer.parameters()[i].tensor;
      away.give_back(i);
      away.prefetch(i + 1);
      if (!parameter.grad().defined()) continue;
      updates.update(i);
      parameter.grad() = Tensor();
    }
    updates.finish();
    return loss;
  } catch (const std::exception& error) {
    if (updates.done() == 0) throw;
    throw_partial(error, updates.done(), optimizer.parameters().size());
  }
}

}  // namespace step_detail

Tensor training_step(optim::Optimizer& optimizer, FunctionRef<Tensor(std::int64_t)> loss_of,
                     const StepOptions& options) {
  optim::RecordingOptions recording = options.recording;
  recording.leaves = options.ranks != nullptr ? &options.ranks->leaves() : &optimizer.leaves();
  recording.ranks = options.ranks;
  recording.stage = options.stage;
  if (!(options.clip_norm >= 0)) {
    throw ValueError("training_step: clip_norm " + std::to_string(options.clip_norm) + "; allowed: > 0, or 0 for none");
  }
  if (options.scaler != nullptr && !optimizer.takes_gradient_factor()) {
    throw ValueError(std::string("training_step: ") + optimizer.name() +
                     " cannot divide gradients by a loss scale; optimizers whose takes_gradient_factor() is true can");
  }
  optimizer.check_members();
  step_detail::check_placed_step(optimizer);
  const bool is_fused = options.fuses_optimizer != FusedUpdate::off;
  if (options.on_gradients &&
      (is_fused || options.gradient_tier || options.scaler != nullptr || options.judge != nullptr)) {
    throw PlanError(std::string("training_step: on_gradients needs all gradients as they are, and ") +
                    (is_fused                ? "a fused optimizer frees each during backward"
                     : options.gradient_tier ? "a gradient tier takes each during backward"
                                             : "a loss scale multiplies them") +
                    "; expected one of the two");
  }
  if (options.gradient_tier) step_detail::check_offloading(optimizer, options);
  if (is_fused) step_detail::check_fusing(optimizer, options);
  if (options.stage != nullptr) options.stage->begin_step();
  if (options.ranks != nullptr) {
    step_detail::check_ranks(options);
    options.ranks->begin_step(optimizer, options.micro_batches);
  }
  const ParameterUse use;
  Transaction transaction;
  const step_detail::RanksStep ranks(options);
  if (options.ranks != nullptr) transaction.defer_updates();
  Tensor loss;
  if (options.gradient_tier) {
    loss = step_detail::run_offloading(optimizer, loss_of, options, recording);
  } else if (is_fused) {
    const step_detail::GradientFactor factor(optimizer, 1 / step_detail::loss_scale(options).value_or(1));
    loss = step_detail::run_fused(optimizer, loss_of, options, recording);
  } else {
    loss = optim::accumulate_gradients(options.micro_batches, options.micro_samples, loss_of, recording, nullptr,
                                       step_detail::loss_scale(options), options.parts);
    transaction.end_keeping();
    if (options.on_gradients) options.on_gradients(optimizer.parameters());
    if (options.scaler != nullptr) {
      step_detail::update_scaled(optimizer, options, loss, transaction);
    } else {
      step_detail::clip(optimizer, options);
      step_detail::update_all(optimizer);
    }
  }
  if (options.ranks != nullptr) options.ranks->share_parameters();
  if (options.stage != nullptr) options.stage->share_parameters();
  if (options.ranks != nullptr) {
    options.ranks->share_state(transaction);
  }
  optimizer.zero_grad();
  transaction.commit();
  return loss;
}

}  // namespace thimble::nn
