#pragma once
// Programs to train, without their types: nn::Trainer makes one of a user's functions, models/training/training.h one
// of a named model and its data.

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
  /// After the model. On one of several ranks its parameters are replaced by this rank's shards (ParameterReplacement).
  virtual void make_optimizers() = 0;
  virtual optim::Optimizer& optimizer(std::size_t part) = 0;
  virtual std::vector<Module*> modules() = 0;
  /// Makes the batch of a step and holds it.
  virtual void take_batch(std::int64_t step) = 0;
  virtual void drop_batch() noexcept = 0;
  /// Of the held batch, where all ranks have the same batch.
  virtual std::vector<Tensor> batch_tensors() { return {}; }
  /// Copies the batch of a step into the one that is held, at its addresses. Throws PlanError if they differ in more
  /// than values of tensors.
  virtual void load_batch(std::int64_t step) = 0;
  /// The host's part of a later step's batch, while the device computes.
  virtual void prepare_batch([[maybe_unused]] std::int64_t step) {}
  /// How this rank's micro-batches of the held batch weigh. An empty list: by their samples (ErasedProgram::outline).
  virtual std::vector<optim::MicroBatch> weights([[maybe_unused]] std::int64_t count) { return {}; }
  virtual void after_update() {}
  virtual Tensor loss(std::size_t part, std::int64_t index, std::int64_t count) = 0;
  virtual Evaluation evaluate() = 0;
  /// After all steps and the last evaluation: the rest of the program, such as writing weights. Without `writes` it
  /// takes its memory and writes no file.
  virtual void end([[maybe_unused]] bool writes) {}
  /// Ranks and stages that the program joins itself when the trainer has none; otherwise null.
  virtual dist::DataParallel* parallel() { return nullptr; }
  virtual optim::Pipeline* stage() { return nullptr; }
  /// With parallel(). Throws PlanError without.
  virtual RankFiles rank_files();
  /// Metadata of its checkpoints, in place of the trainer's options.
  virtual std::optional<std::map<std::string, std::string>> metadata() { return std::nullopt; }
};

class ErasedProgram {
 public:
  virtual ~ErasedProgram() = default;
  /// The model; its optimizers are not made yet.
  virtual std::unique_ptr<ProgramRun> make(memory::Device device) const = 0;
  /// Of the batch of a step, and, of several, of its micro-batches.
  virtual BatchOutline outline(std::int64_t step, memory::Device device, std::int64_t micro_batches) const = 0;
  virtual std::vector<std::string> part_names() const = 0;
  virtual bool evaluates() const = 0;
  virtual bool cuts_batches() const = 0;
  virtual bool has_after_update() const { return false; }
};

}  // namespace thimble::nn
