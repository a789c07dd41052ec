#include <thimble/nn/step/gradient_sink.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/memory/policies/placed.h>
#include <thimble/optim/clip.h>
#include <thimble/optim/offload_gradients.h>
#include <thimble/optim/pipeline.h>
#include <thimble/optim/ranks.h>

namespace thimble::nn {
namespace {

constexpr SinkTraits sinks[] = {
    {.name = "gradients that are kept"},
    {.name = "a fused optimizer",
     .has_norm = false,
     .adds_micro_batches = false,
     .takes_dynamic_scale = false,
     .takes_during_backward = true,
     .why = "each gradient is used and freed as soon as it is complete"},
    {.name = "gradients in a tier",
     .adds_micro_batches = false,
     .takes_scale = false,
     .takes_dynamic_scale = false,
     .takes_during_backward = true,
     .why = "each gradient is sent away as soon as it is complete"},
    {.name = "several ranks"},
};

/// Null if the parameters' resource has no placed arena behind it.
const memory::PlacedArena* placed_behind(const optim::Optimizer& optimizer) {
  if (optimizer.parameters().empty()) return nullptr;
  return memory::PlacedArena::find(*current_resource(optimizer.parameters().front().tensor.device()));
}

/// Updates parameters as their gradients arrive.
class Updates {
 public:
  Updates(optim::Optimizer& optimizer, bool is_secured)
      : optimizer_(optimizer), placed_(is_secured ? placed_behind(optimizer) : nullptr) {
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      by_leaf_.emplace_back(optimizer.parameters()[i].tensor.leaf().get(), i);
    }
    std::sort(by_leaf_.begin(), by_leaf_.end());
  }

  void on_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
    if (!leaf->grad.defined()) return;
    if (done_ == 0 && placed_ != nullptr && !placed_->is_replaying()) return;  // finish() updates them
    const auto first = std::lower_bound(by_leaf_.begin(), by_leaf_.end(), std::pair(leaf.get(), std::size_t{0}));
    auto end = first;
    while (end != by_leaf_.end() && end->first == leaf.get()) ++end;
    const Tensor& parameter = optimizer_.parameters()[first->second].tensor;
    // Backward will still read other tensors with its bytes.
    if (parameter.storage() && parameter.storage()->is_held_for_backward()) return;
    for (auto p = first; p != end; ++p) update(p->second);
    leaf->grad = Tensor();
  }

  /// Makes the remaining updates after backward. Like step(), it counts an update even if there were no gradients.
  void finish() {
    for (std::size_t i = 0; i < optimizer_.parameters().size(); ++i) {
      if (optimizer_.parameters()[i].tensor.grad().defined()) update(i);
    }
    if (done_ == 0) optimizer_.begin_step();
    optimizer_.end_step();
  }

  std::size_t done() const noexcept { return done_; }

  void update(std::size_t index) {
    const memory::Storage* const storage = optimizer_.parameters()[index].tensor.storage().get();
    const std::uint32_t version = storage != nullptr ? storage->version() : 0;
    const std::int64_t before = optimizer_.step_count();
    if (done_ == 0) optimizer_.begin_step();
    try {
      optimizer_.step_one(index);
    } catch (...) {
      const bool is_updated = storage != nullptr && storage->version() != version;  // but its state failed to move
      if (is_updated) ++done_;
      if (done_ == 0) optimizer_.set_step_count(before);
      throw;
    }
    ++done_;
  }

 private:
  optim::Optimizer& optimizer_;
  const memory::PlacedArena* placed_;  // null updates without checking for a replay
  std::vector<std::pair<tape::Leaf*, std::size_t>> by_leaf_;
  std::size_t done_ = 0;
};

/// Sets the optimizer's factor for a scope.
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

/// The sums of squares of all ranks' and stages' gradients.
Tensor square_sums(const optim::Optimizer& optimizer, const StepOptions& options) {
  const Tensor own = options.ranks->gradient_square_sums(optimizer);
  return options.stage != nullptr ? options.stage->sum_squares(own) : own;
}

/// Kept gradients; also sharded ones, which the ranks have summed by the end of backward.
class KeptGradients final : public GradientSink {
 public:
  KeptGradients(optim::Optimizer& optimizer, const StepOptions& options) : optimizer_(optimizer), options_(options) {}

  void take(const std::shared_ptr<tape::Leaf>&) override {}
  void finish(const Tensor& loss, tape::Transaction& transaction) override {
    transaction.end_keeping();
    if (options_.on_gradients) options_.on_gradients(optimizer_.parameters());
    if (options_.scaler != nullptr) return update_scaled(loss, transaction);
    clip();
    update_all();
  }
  std::size_t updated() const noexcept override { return updates_ ? updates_->done() : 0; }

 private:
  /// Can fail half-way only if state or parameters are offloaded or sharded.
  void update_all() {
    if (!optimizer_.updates_one_by_one()) return optimizer_.step();
    updates_.emplace(optimizer_, false);
    updates_->finish();
  }
  void clip() {
    if (options_.clip_norm == 0) return;
    if (options_.ranks == nullptr) {
      optim::clip_grad_norm(optimizer_.parameters(), options_.clip_norm);
      return;
    }
    const Tensor sums = square_sums(optimizer_, options_);
    if (sums.defined()) optim::clip_gradients(optimizer_.parameters(), sums, options_.clip_norm);
  }
  /// Updates after a step with a scaled loss, or skips the update.
  void update_scaled(const Tensor& loss, tape::Transaction& transaction) {
    const bool looks = options_.scaler->looks(options_.clip_norm);
    StepJudge* const judge = looks ? options_.judge : nullptr;
    const auto verdict_of = [&] {
      if (judge != nullptr) return judge->judge(loss, optim::gradient_square_sums(optimizer_.parameters()));
      if (options_.ranks == nullptr) return options_.scaler->judge(optimizer_.parameters(), options_.clip_norm);
      return options_.scaler->judge_sums(looks ? square_sums(optimizer_, options_) : Tensor(), options_.clip_norm);
    };
    const optim::GradScaler::Verdict verdict = verdict_of();
    if (verdict.is_skipped) {
      transaction.drop_state();
    } else {
      const GradientFactor factor(optimizer_, verdict.gradient_factor);
      update_all();
    }
    if (judge == nullptr) options_.scaler->record(verdict);
  }

  optim::Optimizer& optimizer_;
  const StepOptions& options_;
  std::optional<Updates> updates_;
};

class FusedGradients final : public GradientSink {
 public:
  FusedGradients(optim::Optimizer& optimizer, const StepOptions& options)
      : factor_(optimizer, options.scaler != nullptr ? 1 / options.scaler->scale() : 1),
        updates_(optimizer, options.fuses_optimizer == FusedUpdate::secured) {}

  void take(const std::shared_ptr<tape::Leaf>& leaf) override { updates_.on_gradient(leaf); }
  void finish(const Tensor&, tape::Transaction&) override { updates_.finish(); }
  std::size_t updated() const noexcept override { return updates_.done(); }

 private:
  GradientFactor factor_;
  Updates updates_;
};

class OffloadedSink final : public GradientSink {
 public:
  OffloadedSink(optim::Optimizer& optimizer, const StepOptions& options)
      : optimizer_(optimizer),
        away_(optimizer.parameters(), options.gradient_tier, options.clip_norm),
        updates_(optimizer, false) {}

  void take(const std::shared_ptr<tape::Leaf>& leaf) override { away_.take(leaf); }
  void finish(const Tensor&, tape::Transaction&) override {
    for (std::size_t i = 0; i < away_.size(); ++i) {
      const Tensor& parameter = optimizer_.parameters()[i].tensor;
      away_.give_back(i);
      away_.prefetch(i + 1);
      if (!parameter.grad().defined()) continue;
      updates_.update(i);
      parameter.grad() = Tensor();
    }
    updates_.finish();
  }
  std::size_t updated() const noexcept override { return updates_.done(); }

 private:
  optim::Optimizer& optimizer_;
  optim::OffloadedGradients away_;
  Updates updates_;
};

SinkKind kind_of(const StepOptions& options) {
  std::optional<SinkKind> kind;
  const auto choose = [&](bool is_asked, SinkKind other) {
    if (!is_asked) return;
    if (kind) {
      throw PlanError(std::string("training_step: ") + traits_of(*kind).name + " with " + traits_of(other).name +
                      ": a gradient goes to one place; expected one of them");
    }
    kind = other;
  };
  choose(options.fuses_optimizer != FusedUpdate::off, SinkKind::fused);
  choose(options.gradient_tier != nullptr, SinkKind::offloaded);
  choose(options.ranks != nullptr, SinkKind::sharded);
  return kind.value_or(SinkKind::kept);
}

void check(SinkKind kind, const optim::Optimizer& optimizer, const StepOptions& options) {
  const auto refuse = [&](const std::string& with, const std::string& why) {
    throw PlanError(std::string("training_step: ") + traits_of(kind).name + " with " + with + ": " + why +
                    "; expected one of the two");
  };
  const SinkRefusal refusal =
      refusal_of(kind, {.clip_norm = options.clip_norm,
                        .micro_batches = options.micro_batches,
                        .is_scaled = options.scaler != nullptr,
                        .is_scale_dynamic = options.scaler != nullptr && options.scaler->is_dynamic(),
                        .has_hook = options.on_gradients != nullptr});
  const char* const why = traits_of(kind).why;
  if (refusal == SinkRefusal::clip_norm) refuse("clip_norm " + std::to_string(options.clip_norm), why);
  if (refusal == SinkRefusal::micro_batches) refuse(std::to_string(options.micro_batches) + " micro-batches", why);
  if (refusal == SinkRefusal::loss_scale) refuse("a loss scale", why);
  if (refusal == SinkRefusal::hook) refuse("on_gradients", why);
  if (kind == SinkKind::sharded && options.judge != nullptr) refuse("a captured step", "ranks send in each step");
  if (options.on_gradients && options.scaler != nullptr) {
    throw PlanError(
        "training_step: on_gradients with a loss scale, which multiplies gradients; expected one of the two");
  }
  if (kind == SinkKind::fused || kind == SinkKind::offloaded) {
    for (const optim::Named& p : optimizer.parameters()) {
      if (p.tensor.grad().defined()) refuse("a gradient of " + p.name + " from before", why);
    }
  }
  if (options.fuses_optimizer != FusedUpdate::secured || optimizer.parameters().empty()) return;
  const memory::PlacedArena* const placed = placed_behind(optimizer);
  const bool is_dry = optimizer.parameters().front().tensor.device().is_dry;
  if (placed != nullptr ? placed->is_replaying() : is_dry) return;
  throw PlanError(
      "training_step: FusedUpdate::secured without a replayed placed step: memory could run out after the first "
      "update; expected a plan, or FusedUpdate::unsecured");
}

}  // namespace

const SinkTraits& traits_of(SinkKind kind) noexcept { return sinks[static_cast<std::size_t>(kind)]; }

SinkRefusal refusal_of(SinkKind kind, const SinkDemands& demands) noexcept {
  const SinkTraits& sink = traits_of(kind);
  if (demands.clip_norm > 0 && !sink.has_norm) return SinkRefusal::clip_norm;
  if (demands.micro_batches != 1 && !sink.adds_micro_batches) return SinkRefusal::micro_batches;
  if (demands.is_scaled && !sink.takes_scale) return SinkRefusal::loss_scale;
  if (demands.is_scale_dynamic && !sink.takes_dynamic_scale) return SinkRefusal::loss_scale;
  if (demands.has_hook && sink.takes_during_backward) return SinkRefusal::hook;
  return SinkRefusal::none;
}

SinkKind check_sink(const optim::Optimizer& optimizer, const StepOptions& options) {
  const SinkKind kind = kind_of(options);
  check(kind, optimizer, options);
  return kind;
}

void with_sink(SinkKind kind, optim::Optimizer& optimizer, const StepOptions& options,
               FunctionRef<void(GradientSink&)> body) {
  if (kind == SinkKind::fused) {
    FusedGradients sink(optimizer, options);
    body(sink);
  } else if (kind == SinkKind::offloaded) {
    OffloadedSink sink(optimizer, options);
    body(sink);
  } else {
    KeptGradients sink(optimizer, options);
    body(sink);
  }
}

}  // namespace thimble::nn
