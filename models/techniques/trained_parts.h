#pragma once
// A setup's model on one rank, with its optimizer and its communicators, for real or on a dry device.

#include <memory>
#include <vector>

#include <thimble/core/ops/random.h>
#include <thimble/dist/communicator.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/pipeline/pipeline_stage.h>
#include <thimble/models/model.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/files/rank_files.h>
#include <thimble/nn/step/step.h>
#include <thimble/optim/grad_scaler.h>

namespace thimble::models {

struct ModelParts {
  /// Draws parameters from the generator in force. A setup of several ranks needs `ranks`, which must outlive this; on
  /// a dry device a dry communicator replaces them, so they may be null. Throws as make_model and make_optimizer do,
  /// and ValueError if `ranks` do not have the size and rank of the setup.
  ModelParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<dist::Communicator> dry_ranks;
  dist::Communicator* ranks;                     ///< null for one rank
  std::unique_ptr<dist::Communicator> tp_group;  ///< the tensor- or context-parallel group, or null
  std::unique_ptr<dist::Communicator> dp_group;  ///< with the same shards and stage; null if all have them
  std::unique_ptr<dist::Communicator> pp_group;  ///< one of each stage; null without a pipeline
  std::unique_ptr<Model> model;
  std::vector<Model*> pieces;                    ///< Model::pieces
  std::unique_ptr<dist::DataParallel> parallel;  ///< null for one rank
  std::unique_ptr<dist::PipelineStage> stage;    ///< null if this rank has all stages
  std::unique_ptr<dist::AllStages> all_stages;   ///< on one rank, if stages share a parameter; else null
  std::unique_ptr<optim::Optimizer> optimizer;

  /// Records the current pass over micro-batch `part` of this rank; returns its loss, or its output for the next stage.
  Tensor loss(Batch part);
  /// `stage` or `all_stages`, whichever there is; null without either.
  optim::Pipeline* pipeline() const;
  /// The traffic that this rank has begun, over all its communicators; zeros for one rank.
  dist::Communicator::Volume volume() const;
};

struct SeededScope {
  explicit SeededScope(std::uint64_t seed) : generator(seed), scope(generator) {}
  RandomGenerator generator;
  GeneratorScope scope;
};

/// ModelParts and the rest of a loop of steps. Its generator is in force while it lives.
struct TrainedParts : SeededScope, ModelParts {
  /// Throws as ModelParts and step_options do.
  TrainedParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<optim::GradScaler> scaler;  ///< null if the loss is not scaled
  nn::StepOptions options;
};

/// The tensors of the stages after the first, by dry twins; empty for one stage.
std::vector<nn::StageOutline> later_stages(Setup setup, memory::Device device);
/// The model's tensors in a checkpoint that `own`, a stage, does not have; empty if it has all stages.
std::vector<nn::NamedTensor> tensors_of_others(Setup setup, memory::Device device, const Model& own);
/// The optimizer state of the setup without any sharding, as one rank has it, by a dry twin.
nn::WholeState whole_state(Setup setup, memory::Device device);

}  // namespace thimble::models
