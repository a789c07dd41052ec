#pragma once
// The interface of the reference models, and their list by name.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/dist/sharding/group.h>
#include <thimble/models/function.h>
#include <thimble/nn/layers/module.h>
#include <thimble/optim/accumulate.h>

namespace thimble::models {

/// Images (N, H, W, C) in the model's dtype, or token ids (N, T) i64. Targets, i64, are class indices (N), next tokens
/// (N, T), or the tokens that the input hides and -100 elsewhere (N, T).
struct Batch {
  Tensor input, target;
  /// Each sample's number of targets that count, on the host; empty if all are equal.
  std::vector<std::int64_t> counts = {};
  /// AttentionOptions::mask for a model over tokens, or undefined. Micro-batches slice document numbers (N, T), and
  /// masks of four axes if the first one has the samples and not 1.
  Tensor mask = {};
};

/// Samples [begin, end) of a batch, as views.
Batch slice_samples(const Batch& batch, std::int64_t begin, std::int64_t end);

/// For each of `samples` samples, the number of targets that count (are not `ignored`). Throws ShapeError unless the
/// samples divide the targets.
std::vector<std::int64_t> count_targets(std::span<const std::int64_t> targets, std::int64_t samples,
                                        std::int64_t ignored = -100);

/// The `count` micro-batches of a batch, in order, weighted by the targets that count (optim/accumulate.h). If `count`
/// does not divide the samples, sizes differ by one. Throws ValueError unless 1 <= count <= samples.
std::vector<optim::MicroBatch> micro_batches(const Batch& batch, std::int64_t count);
/// Micro-batch `index`, as views; the batch itself if count is 1.
Batch micro_batch(const Batch& batch, std::int64_t index, std::int64_t count);

/// fused: the cheapest form of every operator. textbook: the plain form, whose bytes the literature counts.
enum class Build : std::uint8_t { fused, textbook };

/// How a model over tokens computes its loss. full: logits (N T, V), then their cross-entropy. chunked: some rows at a
/// time, never all logits (core/ops/matmul/chunked.h); an equal loss, gradients summed in another order.
enum class Head : std::uint8_t { full, chunked };

/// How a transformer runs its feed-forward layers. full: keeps their inner activations (N T f) for backward. tiled:
/// rows in tiles, whose inner results backward recomputes (core/ops/matmul/chunked.h); an equal forward, gradients of
/// weights summed in another order.
enum class FeedForward : std::uint8_t { full, tiled };

/// Changes to the named model; sizes that are 0 or negative stay the model's.
struct ModelOptions {
  std::int64_t image = 0;     ///< height and width of images
  std::int64_t channels = 0;  ///< of images
  std::int64_t classes = 0;
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::int64_t layers = 0, heads = 0, width = 0;
  std::int64_t key_heads = 0;  ///< heads of keys and values, with grouped queries
  std::int64_t hidden = 0;     ///< width inside a gated feed-forward layer
  std::int64_t window = 0;     ///< models over tokens: attention sees tokens less than this away; 0 sees all
  double dropout = -1;
  ModelFunction function = {};  ///< of transformers
  bool shares_kernels = true;   ///< sharedconv: false builds its plain twin, with separate kernels
  Build build = Build::fused;
  Head head = Head::full;                        ///< of models over tokens in the fused build
  FeedForward feed_forward = FeedForward::full;  ///< of transformers in the fused build
  dist::ShardGroup group = {};                   ///< the shards of blocks (nn/parallel/shards.h)
  dist::StagePlace stage = {};                   ///< the stage of a pipeline; by default the whole model
};

class Model : public nn::Module {
 public:
  /// Class scores (N, K), or logits (N, T, V).
  virtual Tensor forward(const Tensor& input) = 0;
  /// Mean cross-entropy, one element.
  virtual Tensor loss(const Batch& batch);
  /// A batch of zeros in the right shapes and dtypes on `device`, booked as input, for dry runs and timing.
  virtual Batch empty_batch(std::int64_t samples, memory::Device device) const = 0;
  /// Whether it is over token ids.
  virtual bool is_text() const noexcept = 0;
  /// Whether it predicts hidden tokens instead of the next one.
  virtual bool is_masked() const noexcept { return false; }
  /// The prefix of hidden layers' names; the rest are embeddings and the head. If empty, every matrix but the last
  /// belongs to a hidden layer.
  virtual std::string_view hidden_layers() const noexcept { return {}; }
  /// Whether it has the end of the chain, and with it the head.
  virtual bool has_head() const noexcept { return options_.stage.is_last(); }
  /// Whether it is a chain of blocks, which ModelOptions::stage cuts into stages. The first stage also has the layers
  /// before the blocks, and the last the layers after them. forward() and loss() of a stage read the previous stage's
  /// output in place of a batch's input, and return the next stage's input; in the last stage scores and the loss.
  virtual bool has_stages() const noexcept { return false; }
  /// Parameters that both the first and the last stage have, as separate tensors: the gradients of each are summed
  /// separately. Empty if the stage has none, or is the whole model.
  struct SharedByStages {
    std::vector<Tensor> first, last;
  };
  virtual SharedByStages shared_by_stages() { return {}; }
  /// Whether the first and the last stage share parameters; then several stages give other bits than one.
  virtual bool is_tied() const noexcept { return false; }
  /// Its pieces of the chain, in order: several for a stage in chunks (models/pieces.h), else itself.
  virtual std::vector<Model*> pieces() { return {this}; }
  /// From now on every block runs under checkpoint() and keeps only its input. All bits stay the same. Throws
  /// ValueError for a model without blocks.
  virtual void recompute_blocks(bool is_on = true);
  /// Whether tensors between sharded layers can be sharded, too (dist::ShardGroup::cuts_sequence).
  virtual bool can_cut_sequence() const noexcept { return false; }
  /// The sizes that the model was built with, all filled in.
  const ModelOptions& options() const noexcept { return options_; }

 protected:
  explicit Model(const ModelOptions& options) : options_(options) {}
  ModelOptions options_;
};

struct ModelInfo {
  std::string name;
  std::string description;
  std::int64_t parameters;
};

/// Builds a model under the path of its family ("gpt", "bert", "resnet", "mlp", ...). Throws ValueError for an unknown
/// name (the message lists all), and for sizes that do not fit: heads that do not divide the width, too small an image.
std::unique_ptr<Model> make_model(std::string_view name, const ModelOptions& options = {},
                                  const nn::TensorOptions& on = {});

/// The family of a model: "gpt", "llama", "bert", "vit", "resnet", "mlp", "googlenet", "sharedconv". Throws ValueError
/// for an unknown name.
std::string_view model_family(std::string_view name);

/// `options` with the sizes and the function of a named transformer filled in; for other models unchanged. Builds
/// nothing. Throws as make_model does.
ModelOptions complete_options(std::string_view name, const ModelOptions& options = {});

/// All models with their default sizes, built on a dry device.
std::vector<ModelInfo> model_list();

}  // namespace thimble::models
