#pragma once
// Trains your own model in a memory budget: you pass the program as a few functions, and a number of bytes.
//
//   struct Batch { Tensor x, y; };
//   nn::Trainer<Net, Batch> trainer(
//       {.model = [](memory::Device) { return std::make_unique<Net>(); },
//        .optimizer = [](Net& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{}); },
//        .loss = [](Net& net, const Batch& batch) { return cross_entropy(net(batch.x), batch.y); },
//        .batch = [&](std::int64_t step, memory::Device device) { return Batch{...}; }},
//       {.budget_bytes = 64 << 20, .seed = 1, .steps = 200});
//   trainer.plan().peak_bytes;                                    // before the first step
//   trainer.run([](const nn::Progress& p) { std::printf("%f\n", p.loss); });
//
// With options.save, save_every and resume, run() writes checkpoints and resumes from one, bit for bit like a run that
// was never interrupted. With options.log it writes curves for TensorBoard.
//
// Policy
// - The functions make the whole program. The trainer plans by calling them on dry devices, some thirty times, and then
//   calls them on the real one. So they must depend only on their arguments: a dry run repeats any other side effect.
//   On a dry device a batch has sizes but no values; read a value with nn::read_value (nn/step/read.h).
// - Model, batch, loss and evaluation draw random numbers from the trainer's seed.
// - A step that throws can be repeated, bit for bit like one that never failed: its batch and its loss draw the same
//   numbers, and buffers that the loss wrote in place are restored. Parts before the failed one stay updated, and the
//   next step() continues with the failed one. The program restores any other state: keep an averaged copy of the
//   weights in buffers of the model, which the observer writes. A member that the loss assigns (`net.count++`,
//   `net.mask = ...`) is not restored.
// - Batches of different shapes are different steps. The dry twin of the device gives the shapes before the batch is
//   made. Each gets a plan when it is first seen, the example steps before the first step, and plans are kept. All
//   plans and the evaluation share one budget. Steps with other frozen parameters get plans in the same way.
// - Integers and the like in a batch may change the step, too. The trainer records a batch of known shapes with new
//   values on a dry device, in about the time of a step without its arithmetic, and plans it only if its step differs.
//   If the values change nothing (a counter), a `key` saves that time.
// - Micro-batches are weighted by their samples.
// - With options.ranks every rank runs the same program: each batch is cut into the micro-batches of all ranks, and
//   each rank computes some of them. Its optimizers update only this rank's shards of the parameters. First batches,
//   rates and evaluations that differ between ranks are a ValueError on all of them.
// - A program may have several parts, which every step updates in order (two nets against each other). A part's
//   gradients are freed with its update.
// - The real model is made at the first step, or when model() or optimizer() asks for it.
//
// Terms
//   key     tells shapes apart: the shapes of all tensors in the batch (nn/trainer/batch_outline.h), or the result of
//           TrainedProgram::key
//   part    an optimizer and its loss

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/step/read.h>
#include <thimble/nn/trainer/batch_outline.h>
#include <thimble/nn/trainer/trainer_core.h>

namespace thimble::nn {

template <class Model, class Batch>
struct TrainedPart {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(Model&)> optimizer;
  std::function<Tensor(Model&, const Batch&)> loss;  ///< mean over the samples, one element
};

/// A user's program. `Model` is a Module, or has `std::vector<nn::Module*> modules()`. `Batch` is a Tensor, a type
/// whose tensors nn/trainer/batch_outline.h finds, or any type if the program has a `key`.
template <class Model, class Batch>
struct TrainedProgram {
  /// Called in a LayerScope of the device and TrainerOptions::layers.
  std::function<std::unique_ptr<Model>(memory::Device)> model;
  std::function<std::unique_ptr<optim::Optimizer>(Model&)> optimizer = nullptr;  ///< for a program with one part
  std::function<Tensor(Model&, const Batch&)> loss = nullptr;                    ///< mean over the samples, one element
  std::function<Batch(std::int64_t step, memory::Device)> batch = nullptr;
  std::function<double(Model&, memory::Device)> evaluate = nullptr;  ///< in evaluation mode, without a tape
  std::vector<TrainedPart<Model, Batch>> parts = {};                 ///< in place of `optimizer` and `loss`
  /// Micro-batch `index` of `count` of a batch, for steps with micro-batches. Together they are the batch; they are
  /// weighted by their samples.
  std::function<Batch(const Batch&, std::int64_t index, std::int64_t count)> micro_batch = nullptr;
  /// Gets a batch on a dry device; defaults to the shapes of its tensors.
  std::function<std::string(const Batch&)> key = nullptr;
  /// Replaces `batch` for batches that read the model (a rollout, its samples); called before the step, without a tape.
  std::function<Batch(Model&, std::int64_t step, memory::Device)> batch_of_model = nullptr;
  /// Called in each step after all updates: averages the weights (nn/layers/weight_average.h), bounds values. It may
  /// write to the model in place, and is planned with the step.
  std::function<void(Model&)> after_update = nullptr;
};

namespace trainer_detail {

template <class Model>
std::vector<Module*> modules_of(Model& model) {
  if constexpr (std::is_base_of_v<Module, Model>) {
    return {&model};
  } else {
    return model.modules();
  }
}

/// Passes on the result of a program's function. Throws ValueError for null.
template <class T>
std::unique_ptr<T> made(std::unique_ptr<T> value, const std::string& function) {
  if (value == nullptr) throw ValueError("trainer: " + function + ": expected what it makes, got null");
  return value;
}

/// A type-erased program on one device.
template <class Model, class Batch>
class TypedRun final : public ProgramRun {
 public:
  TypedRun(const TrainedProgram<Model, Batch>& program, memory::Device device)
      : program_(program), device_(device), model_(made(program.model(device), "model")) {}
  Model& model() noexcept { return *model_; }

  void make_optimizers() override {
    for (const auto& part : program_.parts) optimizers_.push_back(made(part.optimizer(*model_), "optimizer"));
  }
  optim::Optimizer& optimizer(std::size_t part) override { return *optimizers_.at(part); }
  std::vector<Module*> modules() override { return modules_of(*model_); }
  void take_batch(std::int64_t step) override {
    if (program_.batch) return batch_.push_back(program_.batch(step, device_));
    const ParameterUse use;
    batch_.push_back(program_.batch_of_model(*model_, step, device_));
  }
  void after_update() override {
    if (!program_.after_update) return;
    const ParameterUse use;
    program_.after_update(*model_);
  }
  void drop_batch() noexcept override { batch_.clear(); }
  std::vector<Tensor> batch_tensors() override {
    std::vector<Tensor> held;
    BatchOutline outline;
    outline.tensors = &held;
    look_at(outline, batch_.front());
    return held;
  }
  Tensor loss(std::size_t part, std::int64_t index, std::int64_t count) override {
    const auto& loss = program_.parts[part].loss;
    return count == 1 ? loss(*model_, batch_.front())
                      : loss(*model_, program_.micro_batch(batch_.front(), index, count));
  }
  void load_batch(std::int64_t step) override {
    take_batch(step);
    const Batch next = std::move(batch_.back());
    batch_.pop_back();
    std::vector<Tensor> held, given;
    BatchOutline to, from;
    to.tensors = &held, from.tensors = &given;
    look_at(to, batch_.front());
    look_at(from, next);
    to.require_seen();
    copy_batch(to, from);
  }
  Evaluation evaluate() override {
    const ParameterUse use;
    return {program_.evaluate(*model_, device_), std::nullopt};
  }

 private:
  const TrainedProgram<Model, Batch>& program_;
  memory::Device device_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
  std::vector<Batch> batch_;  // empty, the held one, or also the next one
};

template <class Model, class Batch>
class TypedProgram final : public AnyProgram {
 public:
  explicit TypedProgram(TrainedProgram<Model, Batch> program, TensorOptions layers = {})
      : layers_(std::move(layers)), program_(std::move(program)) {
    if (!program_.parts.empty() && (program_.optimizer || program_.loss))
      throw ValueError("trainer: expected parts, or optimizer and loss of the only one, got both");
    if (program_.parts.empty()) program_.parts.push_back({"", program_.optimizer, program_.loss});
    if (!program_.model || !(program_.batch || program_.batch_of_model)) {
      throw ValueError("trainer: the program has no model or no batch");
    }
    if (program_.batch && program_.batch_of_model) {
      throw ValueError("trainer: expected one of batch and batch_of_model, got both");
    }
    for (const auto& part : program_.parts) {
      if (!part.optimizer || !part.loss) {
        throw ValueError("trainer: part '" + part.name + "' has no optimizer or no loss");
      }
    }
  }
  std::unique_ptr<ProgramRun> make(memory::Device device) const override {
    return std::make_unique<TypedRun<Model, Batch>>(program_, device);
  }
  BatchOutline outline(std::int64_t step, memory::Device device, std::int64_t micro_batches) const override {
    const Batch batch = program_.batch ? program_.batch(step, device) : batch_of_dry_model(step, device);
    BatchOutline whole;
    look_at(whole, batch);
    if (!program_.key) whole.require_seen();
    if (micro_batches > 1 && !whole.first_axes.empty()) {
      std::vector<BatchOutline> cut(static_cast<std::size_t>(micro_batches));
      for (std::int64_t i = 0; i < micro_batches; ++i) {
        look_at(cut[static_cast<std::size_t>(i)], program_.micro_batch(batch, i, micro_batches));
      }
      whole.samples = samples_of(whole, cut);
    }
    if (program_.key) whole.shapes = program_.key(batch), whole.values.clear();
    return whole;
  }
  std::vector<std::string> part_names() const override {
    std::vector<std::string> names;
    for (const auto& part : program_.parts) names.push_back(part.name);
    return names;
  }
  bool evaluates() const override { return program_.evaluate != nullptr; }
  bool cuts_batches() const override { return program_.micro_batch != nullptr; }
  bool has_after_update() const override { return program_.after_update != nullptr; }

 private:
  /// Uses a model that persists, so its bytes count for no run.
  Batch batch_of_dry_model(std::int64_t step, memory::Device device) const {
    const ResourceScope elsewhere(default_resource(device));
    TensorOptions on = layers_;
    on.device = device;
    const LayerScope layers(on);
    if (dry_model_ == nullptr) dry_model_ = made(program_.model(device), "model");
    return program_.batch_of_model(*dry_model_, step, device);
  }

  TensorOptions layers_;
  mutable std::unique_ptr<Model> dry_model_;
  TrainedProgram<Model, Batch> program_;
};

}  // namespace trainer_detail

/// Trains a program in a budget. A function of the program, an observer or TrainControl that calls step(), run() or
/// skip() during one of them gets a ValueError; an observer may call evaluate().
template <class Model, class Batch>
class Trainer {
 public:
  /// Plans the example steps without using device memory. Throws BudgetError, which names options that would fit;
  /// ValueError for an incomplete program or options, and for a checkpoint path that cannot be written; any error of
  /// load_checkpoint for options.resume, and of the program.
  Trainer(TrainedProgram<Model, Batch> program, TrainerOptions options)
      : core_{std::make_unique<trainer_detail::TypedProgram<Model, Batch>>(std::move(program), options.layers),
              std::move(options)} {}  // arguments are evaluated left to right

  /// The plans of all shapes seen so far.
  const TrainerPlan& plan() const noexcept { return core_.plan(); }

  /// Runs one step, and an evaluation if one is due; writes no file. Throws BudgetError for a batch that no plan fits,
  /// with nothing changed (skip() skips it); PlanError for a step that leaves its plan with options.is_strict, and if
  /// the threads or the instruction set changed since planning; OutOfMemory for a step that left its plan, naming the
  /// place; ValueError for an unfrozen parameter that no optimizer has; NotFiniteError, after the update, for a loss
  /// that is not finite, unless the loss scaler skipped the step; any error of the program.
  Progress step() { return core_.step(); }
  /// Skips the next batch without training: the step counts, and a checkpoint resumes after it.
  void skip() { core_.skip(); }
  /// Batches skipped by skip() or options.skips_unfitting.
  std::int64_t skipped_batches() { return core_.skipped_batches(); }
  /// Runs the remaining steps of options.steps, with evaluations, checkpoints and curves. Each step calls `control` and
  /// the observer before it writes its checkpoint. nn/trainer/training_loop.h describes which files remain after a
  /// failure or a loss that is not finite. The call that makes the model throws OutOfMemory if the machine's limits for
  /// this process leave no room for the plan (memory/process/host_limits.h). Throws any error of step(), and FileError
  /// if the last checkpoint cannot be written.
  RunReport run(const TrainObserver& observer = nullptr, const TrainControl& control = {}) {
    return core_.run(observer, control);
  }
  /// Evaluates in the trainer's arena, between steps. All modules and the function dropout() are in evaluation mode
  /// (core/tensor/context.h), and get their modes back afterwards. Throws ValueError for a program without `evaluate`.
  double evaluate() { return core_.evaluate().loss; }

  Model& model() { return static_cast<trainer_detail::TypedRun<Model, Batch>&>(core_.live()).model(); }
  optim::Optimizer& optimizer(std::size_t part = 0) { return core_.live().optimizer(part); }

  /// Runs the program's first steps with and without the budget, in separate arenas, and compares them bit by bit
  /// (nn/certify/certify.h). A model in training keeps its memory meanwhile.
  Certificate certify(std::int64_t steps) { return core_.certify(steps); }

  /// Bytes that the trainer's arena has committed; 0 before the first step.
  std::size_t peak_bytes() const { return core_.peak_bytes(); }
  /// The arena's bytes by category and by path, now and at the peak, and its committed bytes.
  std::string memory() const { return core_.memory(); }
  /// The full plan, from dry runs: segments that run again, by module; plans from the smallest to the fastest; bytes of
  /// steps and evaluation by category and module, at their peak.
  std::string explain() { return core_.explain(); }
  /// The plan of a step, which nn::write_plan saves for TrainerOptions::plan (nn/fit/plan_file.h). Throws ValueError
  /// without a budget, and for several ranks, parts or shapes.
  const Plan& step_plan() const { return core_.step_plan(); }
  /// Whether steps kept their plans; all zero if none are placed.
  memory::PlacedArena::Statistics placed() const { return core_.placed(); }

 private:
  TrainerCore core_;
};

}  // namespace thimble::nn
