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
  /// Parameters are drawn from the generator in force. `ranks`: of a setup of several ranks those that train together,
  /// which must live as long; on a dry device a dry one of this rank takes their place, and may be null. Throws what
  /// make_model and make_optimizer throw; ValueError where `ranks` are not those of the setup.
  ModelParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<dist::Communicator> dry_ranks;
  dist::Communicator* ranks;                        ///< null: this one alone
  std::unique_ptr<dist::Communicator> team_ranks;   ///< that have the other parts; null: tp 1, or one rank
  std::unique_ptr<dist::Communicator> like_ranks;   ///< that have the same parts and stage; null: all
  std::unique_ptr<dist::Communicator> stage_ranks;  ///< that have the other stages; null: one stage
  std::unique_ptr<Model> model;
  std::vector<Model*> pieces;                    ///< of it (Model::pieces)
  std::unique_ptr<dist::DataParallel> parallel;  ///< null: one rank
  std::unique_ptr<dist::PipelineStage> stage;    ///< null: this rank has all stages
  std::unique_ptr<dist::AllStages> all_stages;   ///< which are several, and share a parameter; null: else
  std::unique_ptr<optim::Optimizer> optimizer;

  /// What the pass under way records of this rank's micro-batch `part`: its loss, or what goes to the next stage.
  Tensor loss(Batch part);
  /// Its stage, or all of them; null: one.
  optim::Pipeline* pipeline() const;
  /// What this rank has begun to send to others, of its team and of those with the same parts. Zeros: one rank.
  dist::Communicator::Volume volume() const;
};

struct SeededScope {
  explicit SeededScope(std::uint64_t seed) : generator(seed), scope(generator) {}
  RandomGenerator generator;
  GeneratorScope scope;
};

/// Those, and all else that steps by hand take: its generator is in force while it lives.
struct TrainedParts : SeededScope, ModelParts {
  /// Throws what ModelParts and step_options throw.
  TrainedParts(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr);

  std::unique_ptr<optim::GradScaler> scaler;  ///< null: the loss is not scaled
  nn::StepOptions options;
};

/// What the stages behind the first one have, by dry twins; nothing of one stage.
std::vector<nn::StageOutline> later_stages(Setup setup, memory::Device device);
/// What a checkpoint of the setup has of a model besides `own`, its stage; nothing of one stage.
std::vector<nn::NamedTensor> tensors_of_others(Setup setup, memory::Device device, const Model& own);
/// The state that one rank's optimizer of the setup has, whatever `setup` shares out or cuts: by a dry twin.
nn::WholeState whole_state(const Setup& setup, memory::Device device);

}  // namespace thimble::models
