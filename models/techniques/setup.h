#pragma once
// A named model with its optimizer, sizes and techniques, from which plans and training runs are made. Errors name an
// option as it is spelled here, in backticks: "`micro_batches`: 3 does not divide `batch` 8".

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

struct Setup {
  std::string model;
  ModelOptions sizes;
  std::int64_t batch = 8;
  /// sgd, momentum, adam, adamw, adafactor, muon, apollo-mini, galore, adam-mini; momentum8, adam8, adamw8: with 8-bit
  /// state; empty: momentum for images, adamw for text
  std::string optimizer;
  std::int64_t optimizer_rank = 0;           ///< of galore; 0: 128
  DType state = DType::f32;                  ///< of momentum, adam, adamw: f32, bf16, u8 (dynamic codes)
  std::vector<std::string> full_state = {};  ///< parameters with f32 state in place of narrow state
  DType dtype = DType::f32;                  ///< of parameters and activations
  std::string
      precision;  ///< a policy (nn/precision/precision.h), whose parameters are of `dtype`; empty: all is of `dtype`
  bool fp8_strict = false;  ///< a layer that the policy's FP8 cannot take is an error
  /// Of the policy's FP8 recipe (nn/layers/fp8_recipe.h); none: as the policy has it.
  std::optional<std::int64_t> fp8_history, fp8_margin;
  std::optional<bool> fp8_hybrid;
  std::optional<optim::GradScalerOptions> loss_scale;  ///< none: as the policy has it
  std::optional<std::int64_t> loss_scale_interval;     ///< good steps before a dynamic one grows; none: as it comes
  double rate = -1;                                    ///< negative: by optimizer and model, see optimizer_numbers
  double clip_norm = -1;                               ///< negative: 1 for text, none for images
  double weight_decay = -1;  ///< negative: 0 for sgd, momentum, adam, adafactor; else 0.1 (tensors of rank 2 and more)
  double beta2 = -1;         ///< of all but sgd, momentum and adafactor; negative: 0.999 for adam, 0.99 for the others
  std::uint64_t seed = 1;
  std::string weights;         ///< safetensors, in one file or a folder, to start from; empty: drawn values
  std::string weights_sum;     ///< of those, filled in by prepare_training (nn::weights_sum)
  std::int64_t lora_rank = 0;  ///< > 0: the model is frozen, and adapters of this rank are trained (nn/lora/lora.h)
  std::optional<double> lora_alpha = {};       ///< none: the rank, so that their product is added unscaled
  std::vector<std::string> lora_targets = {};  ///< linear layers, as nn::LoraOptions has them
  double lora_dropout = 0;                     ///< of adapters' inputs
  /// PEFT's folder (nn/lora/adapter_files.h) of initial adapters: see set_adapters; empty: drawn values.
  std::string adapters = {};
  /// Of frozen weights, with `lora_rank`: f32, bf16; int8, nf4: those of linear layers inside of blocks are coded
  /// (models/techniques/adapting.h) and decoded to `dtype`. Empty: as `dtype` or `precision` say.
  std::string base;
  std::string tokenizer;  ///< a tokenizer.json for reading and writing text: see open_dataset; empty: none
  /// Target for offloading saved tensors: a folder on a disk, on a GPU "host", for its pinned memory; empty: none.
  std::string offload;
  bool offloads_optimizer = false;             ///< its state waits there between updates
  bool offloads_parameters = false;            ///< they wait there between uses
  bool offloads_gradients = false;             ///< they wait there for the update of their parameter
  bool allows_lossy = false;                   ///< plans may pack saved tensors to fewer digits
  DType lossy = DType::bf16;                   ///< which: bf16, f16, f8e4m3, f8e5m2, i8
  std::vector<nn::PackRule> lossy_rules = {};  ///< of operators by name, which override that
  bool packs_rest = true;                      ///< false: results that no rule names are not packed
  bool recomputes_blocks =
      false;                     ///< transformers: each block keeps only its input; a plan for a budget decides itself
  bool fuses_optimizer = false;  ///< parameters are updated during backward (nn/step/step.h); not with clipping
  /// Gradient accumulation; divides the batch, or each rank's part of it. `auto_micro_batches`: to be chosen
  std::int64_t micro_batches = 1;
  int ranks = 1;  ///< that train together, each on its part of the batch (dist/data_parallel.h)
  int rank = 0;   ///< of these
  /// Tensor parallelism: how many parts blocks and the vocabulary are cut into (dist/parts/team.h). Each of several
  /// ranks has one part, and as many in a row are a team, which computes the same samples; a single rank has all parts.
  /// 1: all is whole
  int tp = 1;
  /// Sequence parallelism: with `tp`, norms, dropout and sums between sharded layers have a part of the sequence each
  /// (dist/parts/sequence.h)
  bool sequence_parallel = false;
  /// Context parallelism by heads (Ulysses): parts of the sequence, whose ranks have whole layers and in attention some
  /// heads (dist/parts/sequence.h). Teams are as with `tp`, and one of the two is 1
  int cp = 1;
  /// Pipeline parallelism: stages that a chain of blocks is cut into (ModelOptions::stage). The ranks in a row that
  /// divide the batch and its parts have one stage; a single rank has all. 1: the model is whole
  int pp = 1;
  /// Order of its micro-batches: 1f1b, gpipe, interleaved (dist/pipeline/schedule.h)
  std::string pipeline = "1f1b";
  /// Chunks of the chain per stage, with `pipeline` interleaved: stage r has those with the numbers c `pp` + r
  /// (models/pieces.h). A single rank has them all
  int chunks = 1;
  // Of ranks that share the batch; without effect on fewer than two:
  int zero = 0;                         ///< stage of ZeRO among ranks with the same parts, 0 to 3
  std::size_t bucket_bytes = 25 << 20;  ///< of gradients that travel as one
  /// Units of absent parameters that are fetched before use (memory/offload/unit_store.h): with `offloads_parameters`,
  /// and in stage 3 of `zero`
  int read_ahead = 1;
};

/// Ranks that compute the same samples.
inline int team_size(const Setup& setup) noexcept { return setup.tp * setup.cp; }
/// Ranks that divide the batch, and this one's number among them: each team counts as one, in all stages. Rank (s D +
/// d) T + t of T parts and D such ranks has part t of stage s.
inline int data_ranks(const Setup& setup) noexcept {
  const int alike = team_size(setup) * setup.pp;
  return setup.ranks == 1 || alike < 1 ? setup.ranks : std::max(1, setup.ranks / alike);
}
inline int data_rank(const Setup& setup) noexcept {
  const int team = team_size(setup);
  return setup.ranks == 1 || team < 1 ? setup.rank : setup.rank / team % data_ranks(setup);
}
/// Its stage, and the place in the chain of that stage's chunk, each counted as a separate stage.
inline int stage_number(const Setup& setup) noexcept {
  return setup.pp <= 1 || setup.ranks % setup.pp != 0 ? 0 : setup.rank / (setup.ranks / setup.pp);
}
inline dist::StagePlace stage_of(const Setup& setup, int chunk = 0) noexcept {
  const int pieces = std::max(1, setup.pp) * std::max(1, setup.chunks);
  if (setup.pp <= 1 || setup.ranks % setup.pp != 0) return {0, pieces, true};
  return {chunk * setup.pp + stage_number(setup), pieces};
}

/// The factor of a rank's number of micro-batches: in the interleaved pipeline of several ranks its stages.
inline std::int64_t least_micro_batches(const Setup& setup) noexcept {
  return setup.chunks > 1 && setup.ranks > 1 ? std::max(1, setup.pp) : 1;
}

/// The number of micro-batches is to be chosen for a budget (models/training/choices.h). No run can be made before.
inline constexpr std::int64_t auto_micro_batches = 0;

/// Sets policy and dtype. Throws ValueError for an unknown name.
void set_precision(Setup& setup, const std::string& name);

/// Device and dtypes of the setup's model. Throws ValueError for an unknown policy, one whose parameters are not of
/// `dtype`, FP8 options without FP8, and a part of a recipe that has no effect on its scales.
nn::TensorOptions tensor_options(const Setup& setup, memory::Device device);

/// Which layers of the setup's model run in FP8 and which do not, by its dry twin on the device; nullopt if its policy
/// has no FP8. Throws what make_model throws, with fp8_strict a ValueError at the first layer that falls back.
std::optional<nn::Fp8Layers> fp8_layers(const Setup& setup, memory::Device device);

/// Whether the setup may have a chunked head: not in parts, and not with products in f16 under a policy or with a loss
/// scale, because gradients would vanish before the scale applies.
bool may_chunk_head(const Setup& setup);

/// How the loss is scaled; none: it is not scaled. Throws ValueError for an interval without a dynamic scale.
std::optional<optim::GradScalerOptions> loss_scaling(const Setup& setup);

/// The option that scales the loss, as errors name it: "`precision` O2", "`loss_scale` dynamic", "`loss_scale` 1024".
std::string loss_scale_option(const Setup& setup);

/// A scaler with the options of loss_scaling(); null: the loss is not scaled. Throws ValueError as GradScaler does.
std::unique_ptr<optim::GradScaler> make_scaler(const Setup& setup);

/// The policy and the loss scale in the words of a report: "O2, dynamic loss scale from 65536", "all f16"; empty: all
/// is f32 and the loss is not scaled.
std::string precision_text(const Setup& setup, bool is_inference = false);

/// A warning before training in the setup's dtype: in 8 bits without a policy nothing has a scale. Empty: none.
std::string precision_warning(const Setup& setup);

/// The least batch >= `batch` that the setup's ranks and micro-batches divide.
std::int64_t whole_batch(const Setup& setup, std::int64_t batch);

/// Whether its model is over tokens. Throws ValueError for an unknown name.
bool is_text(const Setup& setup);

/// Clipping and micro-batches of the setup's steps. Throws what check_techniques throws, ValueError while the number of
/// micro-batches is still to be chosen.
nn::StepOptions counted_steps(const Setup& setup, bool is_text);
/// How the setup's steps are made on `device`. The optimizer is fused `secured` if a placed arena is behind the
/// resource in force, else `unsecured`. Throws what counted_steps throws.
nn::StepOptions step_options(const Setup& setup, bool is_text, memory::Device device);

/// The optimizer's name with the default filled in. Throws ValueError listing the names.
std::string optimizer_name(const Setup& setup, bool is_text);

/// Whether an optimizer of that name updates parts of a tensor independently.
bool is_elementwise(const std::string& optimizer);

/// How the moments of a setup are kept: f32, bf16 or u8. Throws ValueError for a state that its optimizer cannot have.
DType optimizer_state(const Setup& setup, bool is_text);

/// The tier for tensors of the setup: in its folder, on a GPU the host's pinned memory. Throws ValueError that names
/// `option` if it has none, FileError.
std::shared_ptr<Tier> make_tier(const Setup& setup, memory::Device device, std::string_view option);

/// The numbers of the setup's optimizer, defaults filled in. Every family of models trains with the default rates
/// (tests/models/training/training_numbers_test.cpp).
struct OptimizerNumbers {
  double rate = 0, weight_decay = 0;
  std::optional<double> beta2 = {};  ///< none: sgd, momentum, adafactor
};
OptimizerNumbers optimizer_numbers(const Setup& setup);

/// The stage `place` of the setup's model; its parameters are in the store in force.
std::unique_ptr<Model> make_stage(const Setup& setup, const dist::StagePlace& place, const nn::TensorOptions& on,
                                  dist::Communicator* team = nullptr);

/// The model to train, or the Pieces of a stage in chunks. Its parameters are in a store if the setup offloads them, or
/// in stage 3 of ZeRO sharded over `ranks`, which have the same parts. These and `team`, the ranks with the other
/// parts, must live as long. Throws what make_model throws, ValueError if parameters are to be offloaded without a
/// tier, or not on its device; FileError as a tier does.
std::unique_ptr<Model> make_model(const Setup& setup, memory::Device device, dist::Communicator* ranks = nullptr,
                                  dist::Communicator* team = nullptr);

/// Throws ValueError for an unknown name or a rate out of range, or if the state is to be offloaded without a tier, or
/// not on its device; FileError as a tier does.
std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model);
/// The same of these parameters, if ranks shard those of the model (dist/data_parallel.h).
std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model,
                                                 std::vector<optim::Named> parameters);

/// The gradient norm that steps are clipped to; 0: none. With a fused optimizer: none by default.
double clip_norm(const Setup& setup, bool is_text);

/// Actions allowed to plans of the setup for `device`. Throws ValueError if its tensors cannot be in such a tier,
/// FileError if the folder cannot take one (memory/offload/file_tier.h).
nn::PlannerOptions planner_options(const Setup& setup, memory::Device device);

/// Makes runs whose step is a forward in evaluation mode, without a tape and without an optimizer.
nn::MakeRun inference_run(const Setup& setup);

}  // namespace thimble::models
