#pragma once
// The interface of every reference model, and the list of them by name.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/dist/parts/team.h>
#include <thimble/models/function.h>
#include <thimble/nn/layers/module.h>
#include <thimble/optim/accumulate.h>

namespace thimble::models {

/// One batch: images (N, H, W, C) in the model's dtype, or token ids (N, T) i64; targets are class indices (N), or next
/// tokens (N, T), or the tokens that the input hides and -100 elsewhere (N, T), i64.
struct Batch {
  Tensor input, target;
  /// The number of each sample's targets that count, known on the host; empty: equal for all.
  std::vector<std::int64_t> counts = {};
  /// AttentionOptions::mask for a model over tokens. Undefined: none. Numbers of documents (N, T), or a mask of four
  /// axes whose first one is the samples or 1, are cut with them.
  Tensor mask = {};
};

/// Samples [begin, end) of a batch: views.
Batch slice_samples(const Batch& batch, std::int64_t begin, std::int64_t end);

/// The number of targets that count (are not `ignored`) in each of `samples` equal parts of a batch's targets, on the
/// host. Throws ShapeError when the samples do not divide the targets.
std::vector<std::int64_t> count_targets(std::span<const std::int64_t> targets, std::int64_t samples,
                                        std::int64_t ignored = -100);

/// The `count` micro-batches of a batch, in order, as a step weighs them (optim/accumulate.h): by the targets that
/// count. If `count` does not divide the samples, sizes differ by one. Throws ValueError unless 1 <= count <= samples.
std::vector<optim::MicroBatch> micro_batches(const Batch& batch, std::int64_t count);
/// Number `index` of them, as views; the batch itself when count is 1.
Batch micro_batch(const Batch& batch, std::int64_t index, std::int64_t count);

/// fused: the cheapest form of every operator. textbook: the plain form, as the literature counts its bytes.
enum class Build : std::uint8_t { fused, textbook };

/// How a model over tokens makes its loss. full: logits (N T, V), then their cross-entropy. chunked: rows in chunks,
/// never all logits (core/ops/matmul/chunked.h); the same loss, gradients summed in another order.
enum class Head : std::uint8_t { full, chunked };

/// How a transformer runs its feed-forward layers. full: their inner activations (N T f) are kept for backward. tiled:
/// rows in tiles, whose inner results backward recomputes (core/ops/matmul/chunked.h); the same forward, gradients of
/// weights summed in another order.
enum class FeedForward : std::uint8_t { full, tiled };

/// Sizes that differ from the named model's; 0 or negative: the model's.
struct ModelOptions {
  std::int64_t image = 0;     ///< height and width of images
  std::int64_t channels = 0;  ///< of images
  std::int64_t classes = 0;
  std::int64_t vocabulary = 0;
  std::int64_t sequence = 0;
  std::int64_t layers = 0, heads = 0, width = 0;
  std::int64_t key_heads = 0;  ///< heads of keys and values, of models with grouped queries
  std::int64_t hidden = 0;     ///< width inside of a gated feed-forward layer
  std::int64_t window = 0;     ///< models over tokens: each sees only those less than this away; 0: all
  double dropout = -1;
  ModelFunction function = {};  ///< of transformers: values that differ from the named model's
  bool shares_kernels = true;   ///< sharedconv: false builds its plain twin, whose kernels are not shared
  Build build = Build::fused;
  Head head = Head::full;                        ///< of models over tokens in the fused build
  FeedForward feed_forward = FeedForward::full;  ///< of transformers in the fused build
  dist::Team team = {};                          ///< the shards of blocks: nn/parallel/shards.h
  dist::StagePlace stage = {};                   ///< the model's stage of a pipeline; one stage: the whole model
};

class Model : public nn::Module {
 public:
  /// Class scores (N, K), or logits (N, T, V).
  virtual Tensor forward(const Tensor& input) = 0;
  /// Mean cross-entropy, one element.
  virtual Tensor loss(const Batch& batch);
  /// A batch of the right shapes and dtypes on `device`, booked as input, with zeros in it: for dry runs and timing.
  virtual Batch empty_batch(std::int64_t samples, memory::Device device) const = 0;
  /// True for models over token ids.
  virtual bool is_text() const noexcept = 0;
  /// True for models over token ids that predict hidden tokens instead of the next one.
  virtual bool is_masked() const noexcept { return false; }
  /// The prefix of the names of all hidden layers: the rest are embeddings and the head. Empty: every matrix but the
  /// last is of a hidden layer.
  virtual std::string_view hidden_layers() const noexcept { return {}; }
  /// Whether it is a chain of blocks, which ModelOptions::stage cuts. A stage has some of them; the first one also has
  /// the layers before them and the last one those behind. Its forward() and loss() read the output of the stage before
  /// in place of a batch's input; both return the input of the next one, those of the last stage scores and the loss.
  virtual bool has_stages() const noexcept { return false; }
  /// Parameters of the first stage that the last one has, too, as separate tensors: their gradients are summed
  /// separately. Empty if the stage has none, or is the whole model.
  struct SharedByStages {
    std::vector<Tensor> first, last;
  };
  virtual SharedByStages shared_by_stages() { return {}; }
  /// Whether the first and the last stage share parameters, so that one stage and several give different bits.
  virtual bool is_tied() const noexcept { return false; }
  /// Its pieces of the chain, in order: a stage in chunks has several (models/pieces.h), every other model is one.
  virtual std::vector<Model*> pieces() { return {this}; }
  /// From now on every block runs under checkpoint(): it keeps only its input. The results have the same bits. Throws
  /// ValueError if the model has no such blocks.
  virtual void recompute_blocks(bool is_on = true);
  /// Whether tensors between its sharded layers can be sharded, too (dist::Team::cuts_sequence).
  virtual bool can_cut_sequence() const noexcept { return false; }
  /// The sizes the model was built with, none of them left open.
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

/// Builds a model under the path of its family ("gpt", "bert", "resnet", "mlp", ...). Throws ValueError: unknown name
/// (the message lists all), sizes that do not fit (heads that do not divide the width, an image that is too small).
std::unique_ptr<Model> make_model(std::string_view name, const ModelOptions& options = {},
                                  const nn::TensorOptions& on = {});

/// The family of a model: "gpt", "llama", "bert", "vit", "resnet", "mlp", "googlenet", "sharedconv". Throws ValueError
/// for an unknown name.
std::string_view model_family(std::string_view name);

/// Complete options of the model: for a name of the token families or ViT its sizes and its function, else `options`.
/// Builds nothing. Throws as make_model does.
ModelOptions complete_options(std::string_view name, const ModelOptions& options = {});

/// All models with their default sizes; parameters are counted on a dry device.
std::vector<ModelInfo> model_list();

}  // namespace thimble::models
