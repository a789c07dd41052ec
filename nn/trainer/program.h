#pragma once
// Programs that are trained: nn::Trainer makes one from a user's functions (TrainedProgram), models/training/training.h
// makes one from a named model and its data.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <thimble/nn/trainer/batch_outline.h>
#include <thimble/nn/trainer/training_loop.h>
#include <thimble/optim/optimizer.h>

namespace thimble::dist {
class DataParallel;
}  // namespace thimble::dist

namespace thimble::optim {
class Pipeline;
}  // namespace thimble::optim

namespace thimble::nn {

class Module;
struct RankFiles;

/// A program on one device, with the objects it owns.
class ProgramRun {
 public:
  virtual ~ProgramRun() = default;
  /// Called once the model is made. With several ranks, a ParameterReplacement gives the optimizers this rank's shards.
  virtual void make_optimizers() = 0;
  virtual optim::Optimizer& optimizer(std::size_t part) = 0;
  virtual std::vector<Module*> modules() = 0;
  /// Makes the batch of a step and holds it.
  virtual void take_batch(std::int64_t step) = 0;
  virtual void drop_batch() noexcept = 0;
  /// Tensors of the held batch, which must be equal on all ranks. Empty if each rank makes a separate batch.
  virtual std::vector<Tensor> batch_tensors() { return {}; }
  /// Copies the batch of a step into the held batch, in place. Throws PlanError if they differ in more than the values
  /// of tensors.
  virtual void load_batch(std::int64_t step) = 0;
  /// Does the host's work for a later step's batch while the device computes.
  virtual void prepare_batch([[maybe_unused]] std::int64_t step) {}
  /// Weights of this rank's micro-batches; an empty list weights them by their samples (AnyProgram::outline).
  virtual std::vector<optim::MicroBatch> weights([[maybe_unused]] std::int64_t count) { return {}; }
  virtual void after_update() {}
  virtual Tensor loss(std::size_t part, std::int64_t index, std::int64_t count) = 0;
  virtual Evaluation evaluate() = 0;
  /// Runs the rest of the program after the last evaluation, such as writing weights. Without `writes` it takes the
  /// same memory and writes no file.
  virtual void end([[maybe_unused]] bool writes) {}
  /// Ranks and stage that the program joins itself because the trainer has none; may be null.
  virtual dist::DataParallel* parallel() { return nullptr; }
  virtual optim::Pipeline* stage() { return nullptr; }
  /// Throws PlanError without parallel().
  virtual RankFiles rank_files();
  /// Metadata for checkpoints, instead of the trainer's options.
  virtual std::optional<std::map<std::string, std::string>> metadata() { return std::nullopt; }
};

/// Makes the runs of a program, and describes them before.
class AnyProgram {
 public:
  virtual ~AnyProgram() = default;
  /// Makes the model, without its optimizers.
  virtual std::unique_ptr<ProgramRun> make(memory::Device device) const = 0;
  /// Describes the batch of a step and, if there are several, its micro-batches.
  virtual BatchOutline outline(std::int64_t step, memory::Device device, std::int64_t micro_batches) const = 0;
  virtual std::vector<std::string> part_names() const = 0;
  virtual bool evaluates() const = 0;
  virtual bool cuts_batches() const = 0;
  virtual bool has_after_update() const { return false; }
};

}  // namespace thimble::nn
