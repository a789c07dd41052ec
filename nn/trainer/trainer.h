#pragma once
// An own model in a budget, in one call: the program as a few functions, and a number of bytes.
//
//   struct Batch { Tensor x, y; };
//   nn::Trainer<Net, Batch> trainer(
//       {.model = [](Device device) { return std::make_unique<Net>(device); },
//        .optimizer = [](Net& net) { return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{}); },
//        .loss = [](Net& net, const Batch& batch) { return cross_entropy(net(batch.x), batch.y); },
//        .batch = [&](std::int64_t step, Device device) { return Batch{...}; }},
//       {.budget_bytes = 64 << 20, .seed = 1, .steps = 200});
//   trainer.plan().peak_bytes;                                    // before the first step
//   trainer.run([](const nn::Progress& p) { std::printf("%f\n", p.loss); });
//
// With options.save, save_every and resume the run writes checkpoints and resumes from one, with the bits of a run that
// was never interrupted; with options.log it writes curves for TensorBoard.
//
// Policy
// - The functions make the whole program: the trainer calls them on dry devices, some thirty times, to plan, and then
//   on the real one. So they must be functions of their arguments alone: dry runs, too, would change whatever they
//   change outside of these. On a dry device a batch has its sizes and no values; a value is read by nn::read_value
//   (nn/step/read.h).
// - Model, batch, loss and evaluation draw random numbers of the trainer's seed; the batch of a step may draw, too.
// - A batch of other shapes is another step. The shapes of a batch are looked up before it is made, on the dry twin of
//   the device; each gets a plan of its own when it is first seen, the example steps before the first step, and the
//   plans are kept. All plans, and the evaluation, share the one budget.
// - A program may have several parts, each an optimizer and its loss, which are updated in turn in every step (two nets
//   against each other). A part's gradients are freed with its update.
// - The real model is made at the first step, or when it is asked for.
//
// Terms
//   key     tells shapes apart: the shapes of all tensors in the batch, or what the program returns
//   part    an optimizer and the loss that it follows

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <thimble/core/ops/op.h>
#include <thimble/nn/certify/certify.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/step/read.h>
#include <thimble/nn/trainer/trainer_core.h>

namespace thimble::nn {

template <class Model, class Batch>
struct TrainedPart {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(Model&)> optimizer;
  std::function<Tensor(Model&, const Batch&)> loss;  ///< mean over the samples, one element
};

/// A user's program. `Model` is a Module, or has `std::vector<nn::Module*> modules()`; `Batch` is a Tensor, or a struct
/// of at most 8 members, of which the tensors (and vectors of tensors) make the key.
template <class Model, class Batch>
struct TrainedProgram {
  std::function<std::unique_ptr<Model>(Device)> model;
  std::function<std::unique_ptr<optim::Optimizer>(Model&)> optimizer = nullptr;  ///< of the only part
  std::function<Tensor(Model&, const Batch&)> loss = nullptr;                    ///< the same
  std::function<Batch(std::int64_t step, Device)> batch;
  std::function<double(Model&, Device)> evaluate = nullptr;  ///< in evaluation mode, without a tape
  std::vector<TrainedPart<Model, Batch>> parts = {};         ///< in place of `optimizer` and `loss`
  /// Part `index` of `count` equal ones of a batch; needed with micro-batches.
  std::function<Batch(const Batch&, std::int64_t index, std::int64_t count)> micro_batch = nullptr;
  std::function<std::string(const Batch&)> key =
      nullptr;  ///< of a batch on a dry device; null: the shapes of its tensors
};

namespace trainer_detail {

template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;

/// Adds the dtypes and shapes of all tensors in a batch.
template <class T>
void add_key(std::string& key, const T& member) {
  if constexpr (std::is_same_v<T, Tensor>) {
    key += (key.empty() ? "" : ", ") +
           (member.defined() ? std::string(to_string(member.dtype())) + " " + to_string(member.shape()) : "none");
  } else if constexpr (is_vector<T>) {
    for (const auto& one : member) add_key(key, one);
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>) {
    std::apply([&](const auto&... members) { (add_key(key, members), ...); }, tie_members(member));
  }
}

template <class Model>
std::vector<Module*> modules_of(Model& model) {
  if constexpr (std::is_base_of_v<Module, Model>) {
    return {&model};
  } else {
    return model.modules();
  }
}

/// A program on one device, without its types.
template <class Model, class Batch>
class TypedRun final : public ErasedRun {
 public:
  TypedRun(const TrainedProgram<Model, Batch>& program, Device device)
      : program_(program), device_(device), model_(program.model(device)) {
    for (const auto& part : program_.parts) optimizers_.push_back(part.optimizer(*model_));
  }
  Model& model() noexcept { return *model_; }

  optim::Optimizer& optimizer(std::size_t part) override { return *optimizers_.at(part); }
  std::vector<Module*> modules() override { return modules_of(*model_); }
  void take_batch(std::int64_t step) override { batch_.push_back(program_.batch(step, device_)); }
  void drop_batch() noexcept override { batch_.clear(); }
  Tensor loss(std::size_t part, std::int64_t index, std::int64_t count) override {
    const auto& loss = program_.parts[part].loss;
    return count == 1 ? loss(*model_, batch_.front())
                      : loss(*model_, program_.micro_batch(batch_.front(), index, count));
  }
  double evaluate() override { return program_.evaluate(*model_, device_); }

 private:
  const TrainedProgram<Model, Batch>& program_;
  Device device_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
  std::vector<Batch> batch_;  // none, or that of the step
};

template <class Model, class Batch>
class TypedProgram final : public ErasedProgram {
 public:
  explicit TypedProgram(TrainedProgram<Model, Batch> program) : program_(std::move(program)) {
    if (program_.parts.empty()) program_.parts.push_back({"", program_.optimizer, program_.loss});
    if (!program_.model || !program_.batch) throw ValueError("trainer: the program has no model or no batch");
    for (const auto& part : program_.parts) {
      if (!part.optimizer || !part.loss) {
        throw ValueError("trainer: part '" + part.name + "' has no optimizer or no loss");
      }
    }
  }
  std::unique_ptr<ErasedRun> make(Device device) const override {
    return std::make_unique<TypedRun<Model, Batch>>(program_, device);
  }
  std::string key(std::int64_t step, Device device) const override {
    const Batch batch = program_.batch(step, device);
    if (program_.key) return program_.key(batch);
    std::string key;
    add_key(key, batch);
    return key;
  }
  std::vector<std::string> part_names() const override {
    std::vector<std::string> names;
    for (const auto& part : program_.parts) names.push_back(part.name);
    return names;
  }
  bool evaluates() const override { return program_.evaluate != nullptr; }
  bool cuts_batches() const override { return program_.micro_batch != nullptr; }

 private:
  TrainedProgram<Model, Batch> program_;
};

}  // namespace trainer_detail

/// Trains a program in a budget.
template <class Model, class Batch>
class Trainer {
 public:
  /// Plans the example steps; no memory of the device is used. Throws BudgetError, which says what would fit;
  /// ValueError for a program or options that are not complete, and for a checkpoint that cannot be where it is asked
  /// for; what load_checkpoint throws for one to go on from; what the program throws.
  Trainer(TrainedProgram<Model, Batch> program, TrainerOptions options)
      : core_(std::make_unique<trainer_detail::TypedProgram<Model, Batch>>(std::move(program)), std::move(options)) {}

  /// The plans of all shapes seen so far.
  const TrainerPlan& plan() const noexcept { return core_.plan(); }

  /// One step, and an evaluation where one is due; no file is written. Throws BudgetError, with nothing changed, for
  /// shapes that no plan of fits; PlanError for a step that leaves its plan where options.is_strict, and where threads
  /// or instruction set are others than when it was planned; what the program throws.
  Progress step() { return core_.step(); }
  /// The steps that are left of options.steps, with evaluations, checkpoints and curves; the observer is told after
  /// each, and `control` asked. nn/trainer/training_loop.h says what happens to files on failures,
  /// and on a loss that is no number. Throws what step() throws; FileError where the last checkpoint cannot be written.
  LoopReport run(const TrainObserver& observer = nullptr, const TrainControl& control = {}) {
    return core_.run(observer, control);
  }
  /// Evaluates in the trainer's arena, between steps. Throws ValueError for a program without an evaluation.
  double evaluate() { return core_.evaluate(); }

  Model& model() { return static_cast<trainer_detail::TypedRun<Model, Batch>&>(core_.live()).model(); }
  optim::Optimizer& optimizer(std::size_t part = 0) { return core_.live().optimizer(part); }

  /// Steps of the program from its beginning, plain and in the budget, compared bit by bit (nn/certify/certify.h): in
  /// arenas of their own, beside the model that was trained so far, where there is one.
  Certificate certify(std::int64_t steps) { return core_.certify(steps); }

  /// Bytes that the trainer's arena has committed; 0 before the first step.
  std::size_t peak_bytes() const { return core_.peak_bytes(); }
  /// Whether steps kept their plans; nothing where none are placed.
  PlacedArena::Statistics placed() const { return core_.placed(); }

 private:
  trainer_detail::TrainerCore core_;
};

}  // namespace thimble::nn
