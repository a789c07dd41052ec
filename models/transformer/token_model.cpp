#include <thimble/models/transformer/token_model.h>

#include <algorithm>
#include <utility>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/checkpoint.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/sharding/loss.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/parallel/tokens.h>

namespace thimble::models {

TokenModel::TokenModel(const ModelOptions& options, const nn::TensorOptions& on)
    : Model(options), compute_(on.compute) {
  const dist::ShardGroup& group = options.group;
  if (group.shards == 1) return;
  const bool is_cut = group.cuts_layers();
  const std::string start = std::string(group.option()) + ": " + std::to_string(group.shards) + " shards: ";
  if (is_cut && options.vocabulary < group.shards) {
    throw ValueError(start + "a vocabulary of " + std::to_string(options.vocabulary) +
                     " tokens; expected at most as many shards");
  }
  if (group.cuts_sequence && options.sequence % group.shards != 0) {
    throw ValueError(start + "a sequence of " + std::to_string(options.sequence) + " tokens; expected a divisor");
  }
  if (options.head == Head::chunked) throw ValueError(start + "not with a chunked head; expected a full one");
  if (!is_cut && options.build == Build::textbook) {
    throw ValueError(start + "not in the textbook build; expected the fused one");
  }
  if (is_cut && on.rules == nullptr) throw ValueError(start + "expected rules for its layers; make_model() gives them");
}

// If one rank has all of several stages, the table's bytes get separate leaves, because the gradients of the two uses
// are summed separately (dist/pipeline/pipeline_stage.h).
void TokenModel::find_tied_weights(std::vector<Tensor>& weights) {
  nn::each_shard_weight(*table_, [&](nn::Parameter& weight) { weights.push_back(weight); });
  if (!options_.stage.has_all || options_.stage.count == 1) return;
  aliases_.resize(weights.size());
  for (std::size_t p = 0; p < weights.size(); ++p) {
    Tensor& alias = aliases_[p];
    if (!alias.defined() || alias.storage() != weights[p].storage()) {
      alias = weights[p].detach();
      alias.require_grad();
      alias.leaf()->is_input = true;  // no optimizer has it
    }
    weights[p] = alias;
  }
}

const TokenModel::HeadShards& TokenModel::head() {
  head_.weights.clear(), head_.biases.clear();
  find_head(head_);
  return head_;
}

DType TokenModel::table_dtype() const {
  std::optional<DType> dtype;
  nn::each_shard_weight(*table_, [&](nn::Parameter& weight) { dtype = weight.dtype(); });
  return *dtype;
}

Model::SharedByStages TokenModel::shared_by_stages() {
  SharedByStages shared;
  if (options_.stage.count == 1 || !is_tied() || table_ == nullptr) return shared;
  if (has_embedding()) {
    nn::each_shard_weight(*table_, [&](nn::Parameter& weight) { shared.first.push_back(weight); });
  }
  if (has_head()) find_tied_weights(shared.last);
  return shared;
}

void TokenModel::make_table(const std::string& name, const nn::TensorOptions& on, double deviation) {
  if (!has_embedding() && !(has_head() && is_tied())) return;
  const ParameterStoreScope where(has_embedding() ? context().parameter_store : nullptr);
  table_ = &child<nn::Embedding>(name, options_.vocabulary, options_.width, on, deviation);
}

namespace {

struct HeadBias final : nn::Module {
  HeadBias(const nn::init::ShardOf& of_head, const nn::TensorOptions& on)
      : shard(of_head), bias(add_parameter("bias", nn::init::constant(shard.shape(), 0, on.dtype, on.device))) {}
  std::optional<nn::PlaceInWhole> place_in_whole(const Tensor&) const override {
    if (shard.shards == 1) return {};
    return nn::PlaceInWhole{shard};
  }
  nn::init::ShardOf shard;
  nn::Parameter bias;
};

}  // namespace

std::vector<nn::Parameter*> TokenModel::make_head_bias(const std::string& name, const nn::TensorOptions& on) {
  const dist::ShardGroup& group = options_.group;
  if (!group.cuts_layers()) return {&child<HeadBias>(name, nn::init::ShardOf{{options_.vocabulary}}, on).bias};
  std::vector<nn::Parameter*> biases;
  for (int p = group.first(); p < group.first() + group.count(); ++p) {
    const nn::init::ShardOf shard{{options_.vocabulary}, 0, group.shards, p};
    biases.push_back(&child<HeadBias>(name + "." + std::to_string(p), shard, on).bias);
  }
  return biases;
}

// Ids (B, T), or the previous stage's output (B, T, C) -> the input of the head or of the next stage (B, T, C).
Tensor TokenModel::features(const Tensor& in, const AttentionInputs& with) {
  if (has_embedding() && (in.rank() != 2 || in.size(1) > options_.sequence)) {
    throw ShapeError(std::string(path_name(path())) + ": ids " + to_string(in.shape()) +
                     "; expected (B, T) with T <= " + std::to_string(options_.sequence));
  }
  const PathScope scope(path());
  Tensor x = through_blocks(blocks_, has_embedding() ? embed(in, 0) : in, recomputes_blocks_,
                            [&](TransformerBlock& block, const Tensor& of_block) { return block(of_block, with); });
  return has_head() ? finish(std::exchange(x, Tensor())) : x;
}

Tensor TokenModel::add_positions(const Tensor& x, const Tensor& rows) const {
  return options_.group.cuts_sequence ? nn::add_positions(options_.group, x, rows) : add(x, rows);
}

Tensor TokenModel::logits(const Tensor& x) {
  if (nn::Linear* const quantized = quantized_head()) {
    const PathScope scope(path());
    const PathScope below("head");
    return (*quantized)(x);
  }
  const HeadShards& shards = head();
  const PathScope scope(path());
  const PathScope below(shards.path);
  const auto bias_of = [&](std::size_t p) { return shards.biases.empty() ? Tensor() : shards.biases[p]; };
  const dist::ShardGroup& group = options_.group;
  if (group.has_whole_layers) return nn::linear_tokens(group, x, shards.weights[0], bias_of(0), compute_);
  const auto of_shard = [&](std::size_t p, const Tensor& in) {
    return linear(in, nn::as_operand(shards.weights[p], compute_), nn::as_operand(bias_of(p), compute_));
  };
  const Tensor operand = nn::as_operand(x, compute_);
  if (!group.cuts_layers()) return of_shard(0, operand);
  std::optional<SegmentScope> segment;
  if (group.cuts_sequence) segment.emplace(nn::keep_all_but_gathered);
  const std::vector<Tensor> scores = dist::for_each_shard(group, operand, of_shard);
  return scores.size() == 1 ? scores[0] : concat(scores, -1);
}

Tensor TokenModel::forward(const Tensor& ids, const Tensor& mask) {
  if (has_head() && options_.group.shards > 1) {
    throw ValueError(std::string(path_name(path())) + ": scores of a " +
                     (options_.group.cuts_layers() ? "vocabulary" : "sequence") + " in " +
                     std::to_string(options_.group.shards) +
                     " shards, which are never side by side; expected loss(), or one shard");
  }
  const Tensor x = features(ids, {.mask = mask});
  return has_head() ? logits(x) : x;
}

Tensor TokenModel::loss(const Batch& batch) {
  if (!has_head()) return forward(batch.input, batch.mask);
  if (options_.head == Head::chunked) {
    if (quantized_head() != nullptr) {
      throw ValueError(std::string(path_name(path())) +
                       ": expected a full head over quantized weights, got a chunked one");
    }
    const Tensor x = features(batch.input, {.mask = batch.mask});
    const HeadShards& shards = head();
    const PathScope scope(path());
    const PathScope below("loss");
    const Tensor bias = shards.biases.empty() ? Tensor() : nn::as_operand(shards.biases[0], compute_);
    return chunked_token_loss(nn::as_operand(x, compute_), nn::as_operand(shards.weights[0], compute_), bias,
                              batch.target);
  }
  const Tensor scores = logits(features(batch.input, {.mask = batch.mask}));
  const PathScope scope(path());
  const PathScope below("loss");
  const dist::ShardGroup& group = options_.group;
  if (group.shards == 1) return token_loss(scores, batch.target, options_.build);
  const Tensor rows = reshape(scores, {-1, scores.size(-1)});  // (B T, V), or this rank's shard of it
  if (group.has_whole_layers) return apply(dist::TokenShardsLoss{group}, rows, batch.target);
  const Tensor classes = view::reshape(contiguous(batch.target), {-1});
  return apply(dist::ClassShardsLoss{group, options_.vocabulary, options_.build == Build::textbook}, rows, classes);
}

Batch TokenModel::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_token_batch(options_, samples, device);
}

nn::KvCacheSizes Decoder::cache_sizes() const {
  const DType rows = compute_.value_or(table_dtype());
  return {.layers = options_.layers,
          .heads = options_.key_heads > 0 ? options_.key_heads : options_.heads,
          .width = options_.width / options_.heads,
          .dtype = size_of(rows) == 1 ? DType::f16 : rows};  // f16 has all values of 8-bit floats
}

Tensor Decoder::extend(const Tensor& ids, nn::KvCache& cache) {
  check_extension(ids, cache);
  const PathScope scope(path());
  Tensor x = embed(ids, cache.length());  // (B, T, C)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const nn::CachedLayer past{cache, static_cast<std::int64_t>(i)};
    x = (*blocks_[i])(x, {.past = &past});
  }
  cache.advance(ids.size(1));
  return logits(finish(contiguous(view::slice(x, 1, x.size(1) - 1, x.size(1)))));
}

void Decoder::check_extension(const Tensor& ids, const nn::KvCache& cache) const {
  const std::string name(path_name(path()));
  if (options_.group.shards > 1) {
    throw ValueError(name + ": a cache with sharded blocks; expected whole blocks");
  }
  const nn::KvCacheSizes own = cache_sizes();
  const nn::KvCacheSizes& other = cache.sizes();
  if (other.layers != own.layers || other.heads != own.heads || other.width != own.width) {
    throw ShapeError(name + ": a cache of " + std::to_string(other.layers) + " layers, " + std::to_string(other.heads) +
                     " heads of " + std::to_string(other.width) + "; expected " + std::to_string(own.layers) + ", " +
                     std::to_string(own.heads) + " of " + std::to_string(own.width));
  }
  if (ids.rank() != 2 || ids.size(0) != other.batch || ids.size(1) < 1) {
    throw ShapeError(name + ": ids " + to_string(ids.shape()) + "; expected (B, T) with B " +
                     std::to_string(other.batch) + ", as the cache has, and T >= 1");
  }
  const std::int64_t most = std::min(most_positions(), other.context), end = cache.length() + ids.size(1);
  if (end > most) {
    throw ValueError(name + ": position " + std::to_string(end - 1) + "; expected those below " + std::to_string(most));
  }
}

}  // namespace thimble::models
