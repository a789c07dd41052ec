#pragma once
// A named model with its sizes, optimizer and techniques: the input of plans and training runs. Errors name options in
// backticks, techniques by their keys (models/techniques/technique.h): "`micro_batches`: 3 does not divide `batch` 8".

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/layers/fp8.h>
#include <thimble/nn/precision/precision.h>
#include <thimble/nn/step/profile.h>
#include <thimble/optim/grad_scaler.h>
#include <thimble/optim/optimizer.h>

namespace thimble::dist {
class Communicator;
}

namespace thimble::models {

struct OptimizerSetup {
  /// sgd, momentum, adam, adamw, adafactor, muon, apollo-mini, galore, adam-mini; momentum8, adam8, adamw8 keep 8-bit
  /// state. Defaults to momentum for images, adamw for text
  std::string name;
  std::int64_t rank = 0;                     ///< of GaLore's projection; 0 means 128
  DType state = DType::f32;                  ///< of momentum, adam, adamw: f32, bf16, u8 (dynamic codes)
  std::vector<std::string> full_state = {};  ///< parameters whose state stays f32
  double rate = -1;                          ///< if negative, see optimizer_numbers
  double clip_norm = -1;                     ///< if negative, see models::clip_norm()
  double weight_decay = -1;  ///< if negative, 0 for sgd, momentum, adam, adafactor, else 0.1 (on tensors of rank >= 2)
  double beta2 = -1;         ///< not for sgd, momentum, adafactor; if negative, 0.999 for adam, 0.99 for the others
};

struct PrecisionSetup {
  DType dtype = DType::f32;  ///< of parameters and activations
  std::string policy;        ///< its name (nn/precision/precision.h); if empty, everything is in `dtype`
  bool fp8_strict = false;   ///< a layer that cannot run in the policy's FP8 is an error
  /// Changes to the policy's FP8 recipe (nn/layers/fp8_recipe.h).
  std::optional<std::int64_t> fp8_history, fp8_margin;
  std::optional<bool> fp8_hybrid;
  std::optional<optim::GradScalerOptions> loss_scale;  ///< defaults to the policy's
  std::optional<std::int64_t> loss_scale_interval;     ///< finite steps before a dynamic scale grows; defaults to 2000
};

struct LoraSetup {
  std::int64_t rank = 0;                  ///< > 0 freezes the model and trains adapters of this rank (nn/lora/lora.h)
  std::optional<double> alpha = {};       ///< defaults to the rank, which adds their product unscaled
  std::vector<std::string> targets = {};  ///< linear layers, as in nn::LoraOptions
  double dropout = 0;                     ///< of the adapters' inputs
  /// PEFT folder (nn/lora/adapter_files.h) of initial adapters, see set_adapters; drawn at random if empty.
  std::string adapters = {};
  /// Format of frozen weights: f32 or bf16, or int8 or nf4 for linear layers inside blocks, which are decoded to
  /// `dtype` before use (models/techniques/adapting.h). Defaults to the dtype of the parameters.
  std::string base;
};

struct OffloadSetup {
  /// A folder on a disk, or on a GPU "host", its pinned memory: plans offload saved tensors there. Nowhere if empty
  std::string to;
  bool optimizer = false;   ///< its state waits there between updates
  bool parameters = false;  ///< wait there between uses
  bool gradients = false;   ///< wait there for the update
  /// Units of parameters that are fetched before use (memory/offload/unit_store.h), with `parameters` or ZeRO stage 3
  int read_ahead = 1;
};

struct PackingSetup {
  bool is_allowed = false;               ///< plans may pack saved tensors, which rounds gradients
  DType dtype = DType::bf16;             ///< bf16, f16, f8e4m3, f8e5m2 or i8
  std::vector<nn::PackRule> rules = {};  ///< by operator, in place of `dtype`
  bool packs_rest = true;                ///< results that no rule names are packed, too
};

struct LayoutSetup {
  int ranks = 1;  ///< that train together, each on its share of the batch (dist/data_parallel.h)
  int rank = 0;
  /// Tensor parallelism: shards of blocks and of the vocabulary (dist/sharding/group.h). `tp` consecutive ranks with
  /// one shard each form a group that computes the same samples; a single rank has all shards
  int tp = 1;
  /// Sequence parallelism: with `tp`, shards norms, dropout and sums between sharded layers along the sequence
  /// (dist/sharding/sequence.h)
  bool sequence_parallel = false;
  /// Context parallelism by heads (Ulysses): shards of the sequence. Ranks have whole layers, and in attention some of
  /// the heads (dist/sharding/sequence.h). Groups are formed as for `tp`; one of the two is 1
  int cp = 1;
  /// Pipeline parallelism: stages that a chain of blocks is cut into (ModelOptions::stage). Each `ranks` / `pp`
  /// consecutive ranks have one stage; a single rank has all
  int pp = 1;
  /// Order of a stage's micro-batches: 1f1b, gpipe, interleaved (dist/pipeline/schedule.h)
  std::string pipeline = "1f1b";
  /// Chunks per stage, with `pipeline` interleaved: stage r has chunks c `pp` + r of the chain (models/pieces.h). A
  /// single rank has them all
  int chunks = 1;
  // For ranks that divide the batch; without effect on fewer than two:
  int zero = 0;                         ///< stage of ZeRO among ranks with the same shards, 0 to 3
  std::size_t bucket_bytes = 25 << 20;  ///< of gradients that ranks reduce together
};

struct Setup {
  std::string model;
  ModelOptions sizes;
  std::int64_t batch = 8;
  /// Micro-batches that the batch, or a rank's share of it, is divided into; or `auto_micro_batches`
  std::int64_t micro_batches = 1;
  std::uint64_t seed = 1;
  std::string weights;      ///< initial values in safetensors, a file or a folder; drawn at random if empty
  std::string weights_sum;  ///< checksum of `weights` (nn::weights_sum), filled in by Engine
  std::string tokenizer;    ///< a tokenizer.json for reading and writing text (open_dataset), or empty
  OptimizerSetup optimizer;
  PrecisionSetup precision;
  LoraSetup lora;
  OffloadSetup offload;
  PackingSetup packing;
  LayoutSetup layout;
  bool recomputes_blocks = false;  ///< transformers: blocks keep only their input; plans for a budget override this
  bool fuses_optimizer = false;    ///< updates parameters during backward (nn/step/step.h); not with clipping
};

/// The size of a tensor- or context-parallel group, whose ranks compute the same samples.
inline int group_size(const Setup& setup) noexcept { return setup.layout.tp * setup.layout.cp; }
/// Shares of the batch, and the number of this rank's share. The ranks of a group have the same share, in all stages.
/// With D groups of T ranks per stage, rank (s D + d) T + t has stage s, share d and shard t.
inline int data_ranks(const Setup& setup) noexcept {
  const int alike = group_size(setup) * setup.layout.pp;
  return setup.layout.ranks == 1 || alike < 1 ? setup.layout.ranks : std::max(1, setup.layout.ranks / alike);
}
inline int data_rank(const Setup& setup) noexcept {
  const int group = group_size(setup);
  return setup.layout.ranks == 1 || group < 1 ? setup.layout.rank : setup.layout.rank / group % data_ranks(setup);
}
/// This rank's stage, and the place of one of its chunks in the chain, which counts each chunk as a stage.
inline int stage_number(const Setup& setup) noexcept {
  return setup.layout.pp <= 1 || setup.layout.ranks % setup.layout.pp != 0
             ? 0
             : setup.layout.rank / (setup.layout.ranks / setup.layout.pp);
}
inline dist::StagePlace stage_of(const Setup& setup, int chunk = 0) noexcept {
  const int pieces = std::max(1, setup.layout.pp) * std::max(1, setup.layout.chunks);
  if (setup.layout.pp <= 1 || setup.layout.ranks % setup.layout.pp != 0) return {0, pieces, true};
  return {chunk * setup.layout.pp + stage_number(setup), pieces};
}

/// Divides the number of a rank's micro-batches: the stages, in an interleaved pipeline of several ranks, else 1.
inline std::int64_t least_micro_batches(const Setup& setup) noexcept {
  return setup.layout.chunks > 1 && setup.layout.ranks > 1 ? std::max(1, setup.layout.pp) : 1;
}

/// The budget chooses the number of micro-batches (models/training/choices.h); until then no run can be made.
inline constexpr std::int64_t auto_micro_batches = 0;

/// Sets policy and dtype. Throws ValueError for an unknown name.
void set_precision(Setup& setup, const std::string& name);

/// Device and dtypes of the setup's model. Throws ValueError for an unknown policy, one whose parameters do not have
/// `dtype`, FP8 options without FP8, and FP8 options that have no effect on the policy's kind of scales.
nn::TensorOptions tensor_options(const Setup& setup, memory::Device device);

/// The model's layers in FP8 and in a higher precision, by a dry twin on the device; nullopt if the policy has no FP8.
/// Throws as make_model does; with fp8_strict a ValueError at the first layer that falls back.
std::optional<nn::Fp8Layers> fp8_layers(const Setup& setup, memory::Device device);

/// Whether the setup may have a chunked head: not in shards, and not with products in f16 under a policy or with a loss
/// scale, because gradients would vanish before the scale applies.
bool may_chunk_head(const Setup& setup);

/// How the loss is scaled, if it is. Throws ValueError for an interval without a dynamic scale.
std::optional<optim::GradScalerOptions> loss_scaling(const Setup& setup);

/// The option that scales the loss, as errors name it: "`precision` O2", "`loss_scale` dynamic", "`loss_scale` 1024".
std::string loss_scale_option(const Setup& setup);

/// A scaler with the options of loss_scaling(), null without them. Throws ValueError as GradScaler does.
std::unique_ptr<optim::GradScaler> make_scaler(const Setup& setup);

/// The policy and the loss scale, for reports: "O2, dynamic loss scale from 65536", "all f16"; empty if everything is
/// f32 and the loss is not scaled.
std::string precision_text(const Setup& setup, bool is_inference = false);

/// A warning before training in 8 bits without a policy, where nothing has a scale; else empty.
std::string precision_warning(const Setup& setup);

/// The smallest batch >= `batch` that the setup's ranks and micro-batches divide.
std::int64_t whole_batch(const Setup& setup, std::int64_t batch);

/// Whether the model is over tokens. Throws ValueError for an unknown name.
bool is_text(const Setup& setup);

/// Clipping and micro-batches of the setup's steps. Throws as check_techniques does, and ValueError while the number of
/// micro-batches is not chosen.
nn::StepOptions counted_steps(const Setup& setup, bool is_text);
/// Options of the setup's steps on `device`. A fused optimizer is `secured` if a placed arena is behind the resource in
/// force, else `unsecured`. Throws as counted_steps and make_tier do.
nn::StepOptions step_options(const Setup& setup, bool is_text, memory::Device device);

/// The optimizer's name with the default filled in. Throws ValueError listing the names.
std::string optimizer_name(const Setup& setup, bool is_text);

/// Whether the optimizer updates each element of a tensor independently of the others.
bool is_elementwise(const std::string& optimizer);

/// Dtype of the setup's moments: f32, bf16 or u8. Throws ValueError if its optimizer cannot keep them so.
DType optimizer_state(const Setup& setup, bool is_text);

/// The setup's tier: in its folder, or on a GPU the host's pinned memory. Throws ValueError that names `option` if the
/// setup has no place for a tier, and FileError.
std::shared_ptr<memory::Tier> make_tier(const Setup& setup, memory::Device device, std::string_view option);

/// The numbers of the setup's optimizer, defaults filled in. Tests train every family of models with the default rates
/// (tests/models/training/training_numbers_test.cpp).
struct OptimizerNumbers {
  double rate = 0, weight_decay = 0;
  std::optional<double> beta2 = {};  ///< sgd, momentum and adafactor have none
};
OptimizerNumbers optimizer_numbers(const Setup& setup);

/// Stage `place` of the setup's model, with its parameters in the store in force.
std::unique_ptr<Model> make_stage(const Setup& setup, const dist::StagePlace& place, const nn::TensorOptions& on,
                                  dist::Communicator* group = nullptr);

/// The model to train, or the Pieces of a stage in chunks. Its parameters are in a store if the setup offloads them, or
/// in stage 3 of ZeRO, which shards them over `ranks`, the ranks with the same shards of layers. `ranks` and `group`,
/// the group with the other shards, must outlive the model. Throws as make_model(name) does, ValueError if the
/// setup offloads parameters without a tier or on another device than its tier's, FileError as a tier does.
std::unique_ptr<Model> make_model(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr,
                                  dist::Communicator* group = nullptr);

/// Throws ValueError for an unknown name, a rate out of range, or state that is offloaded without a tier or on another
/// device than its tier's; FileError as a tier does.
std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model);
/// The optimizer of these parameters, for ranks that shard the model's (dist/data_parallel.h).
std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model,
                                                 std::vector<optim::Named> parameters);

/// The gradient norm that steps clip to, or 0. Defaults to 1 for text without a fused optimizer, else to 0.
double clip_norm(const Setup& setup, bool is_text);

/// Actions that the setup's plans for `device` may take. Throws ValueError if `offload` is not for tensors of the
/// device, FileError if the folder cannot hold a tier (memory/offload/file_tier.h).
nn::PlannerOptions planner_options(const Setup& setup, memory::Device device);

/// Makes runs whose step is a forward in evaluation mode, without tape and optimizer.
nn::MakeRun inference_run(const Setup& setup);

}  // namespace thimble::models
