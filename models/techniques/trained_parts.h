#pragma once
// A setup's model on one rank, with its optimizer and the ranks that it trains with: for real and on a dry device.

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
  /// Parameters are drawn from the generator in force. `ranks`: those of a setup of several that train together, which
  /// must live as long; on a dry device a dry one of this rank replaces them, and may be null. Throws what make_model
  /// and make_optimizer throw; ValueError if `ranks` are not those of the setup.
  ModelParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<dist::Communicator> dry_ranks;
  dist::Communicator* ranks;                        ///< null: only this one
  std::unique_ptr<dist::Communicator> team_ranks;   ///< that have the other parts; null: tp 1, or one rank
  std::unique_ptr<dist::Communicator> like_ranks;   ///< that have the same parts and stage; null: all
  std::unique_ptr<dist::Communicator> stage_ranks;  ///< that have the other stages; null: one stage
  std::unique_ptr<Model> model;
  std::vector<Model*> pieces;                    ///< of it (Model::pieces)
  std::unique_ptr<dist::DataParallel> parallel;  ///< null: one rank
  std::unique_ptr<dist::PipelineStage> stage;    ///< null: this rank has all stages
  std::unique_ptr<dist::AllStages> all_stages;   ///< which are several, and share a parameter; null: else
  std::unique_ptr<optim::Optimizer> optimizer;

  /// The current pass's record of this rank's micro-batch `part`: its loss, or its output for the next stage.
  Tensor loss(Batch part);
  /// Its stage, or all of them; null: one.
  optim::Pipeline* pipeline() const;
  /// The traffic that this rank has begun, to its team and to ranks with the same parts. Zeros: one rank.
  dist::Communicator::Volume volume() const;
};

struct SeededScope {
  explicit SeededScope(std::uint64_t seed) : generator(seed), scope(generator) {}
  RandomGenerator generator;
  GeneratorScope scope;
};

/// Those, and everything else for your own loop of steps: its generator is in force while it lives.
struct TrainedParts : SeededScope, ModelParts {
  /// Throws what ModelParts and step_options throw.
  TrainedParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<optim::GradScaler> scaler;  ///< null: the loss is not scaled
  nn::StepOptions options;
};

/// The tensors of the stages behind the first one, by dry twins; empty for one stage.
std::vector<nn::StageOutline> later_stages(Setup setup, memory::Device device);
/// The tensors of a model in a checkpoint of the setup besides `own`, its stage; empty for one stage.
std::vector<nn::NamedTensor> tensors_of_others(Setup setup, memory::Device device, const Model& own);
/// The optimizer state of the setup on one rank, without any sharding of `setup`: by a dry twin.
nn::WholeState whole_state(const Setup& setup, memory::Device device);

}  // namespace thimble::models
