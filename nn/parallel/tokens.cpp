#include <thimble/nn/parallel/tokens.h>

#include <string>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/dropout.h>
#include <thimble/core/ops/norm/norm.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/sharding/sequence.h>
#include <thimble/nn/parallel/shards.h>

namespace thimble::nn {

namespace {

/// Replaces `base` for a group's tokens.
template <class Base>
class TokenLayer : public Layer {
 public:
  TokenLayer(Base& base, const dist::ShardGroup& group) : base_(base), group_(group) {}
  std::string_view difference() const override { return "has tokens in shards"; }

 protected:
  Base& base_;
  dist::ShardGroup group_;
};

struct TokenLayerNorm final : TokenLayer<LayerNorm> {
  using TokenLayer::TokenLayer;
  Tensor forward(const Tensor& x) override {
    return apply(ops::LayerNorm{1, base_.epsilon(), group_.count()}, x, dist::copy_to_group(group_, base_.weight),
                 dist::copy_to_group(group_, base_.bias));
  }
};

struct TokenRmsNorm final : TokenLayer<RmsNorm> {
  using TokenLayer::TokenLayer;
  Tensor forward(const Tensor& x) override {
    return apply(ops::RmsNorm{1, base_.epsilon(), group_.count()}, x, dist::copy_to_group(group_, base_.weight));
  }
};

/// Each token draws the same numbers as in the whole sequence.
struct TokenDropout final : TokenLayer<Dropout> {
  using TokenLayer::TokenLayer;
  Tensor forward(const Tensor& x) override {
    if (!is_training() || base_.probability() == 0) return x;
    const RandomSite site = next_random_site();
    const ops::SampleParts parts{group_.count(), group_.first()};
    return base_.is_textbook() ? apply(ops::DropoutTextbook{base_.probability(), site, parts}, x)
                               : apply(ops::Dropout{base_.probability(), site, parts}, x);
  }
};

// A parameter as input of shards. If one rank has all shards, their gradients are summed before they are added to other
// readers' gradients, as in a group.
Tensor for_shards(const dist::ShardGroup& group, const Tensor& parameter) {
  return group.ranks == nullptr && parameter.defined() ? dist::copy_to_group(group, parameter) : parameter;
}

// Computes each shard of x separately, with the parameters as that shard reads them.
Tensor linear_shards(const dist::ShardGroup& group, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute, kernels::Activation activation, bool weight_is_in_out) {
  const Tensor in = as_operand(x, compute);
  const std::int64_t samples = x.size(0) / group.count();
  const Tensor all_weight = for_shards(group, weight), all_bias = for_shards(group, bias);
  std::vector<Tensor> shards;
  for (int p = 0; p < group.count(); ++p) {
    const Tensor own = group.count() == 1 ? in : slice(in, 0, p * samples, (p + 1) * samples);
    const auto entered = [&](const Tensor& t) {
      return t.defined() ? as_operand(dist::copy_to_group(group, t), compute) : Tensor();
    };
    shards.push_back(linear(own, entered(all_weight), entered(all_bias), activation, weight_is_in_out));
  }
  return shards.size() == 1 ? shards[0] : concat(shards, 0);
}

struct TokenLinear final : TokenLayer<Linear> {
  using TokenLayer::TokenLayer;
  Tensor forward(const Tensor& x) override {
    return linear_shards(group_, x, base_.weight, base_.bias, base_.compute(), base_.activation(),
                         base_.weight_is_in_out());
  }
};

/// Ids (B, T) of all tokens -> (P B, T / t, C) for this rank's shards.
struct TokenEmbedding final : TokenLayer<Embedding> {
  using TokenLayer::TokenLayer;
  Tensor forward(const Tensor& ids) override {
    if (ids.size(1) % group_.shards != 0) {
      throw ShapeError("embedding: expected ids (B, T) whose T " + std::to_string(group_.shards) +
                       " shards divide, got " + describe(ids));
    }
    const std::int64_t each = ids.size(1) / group_.shards;
    const Tensor weight = for_shards(group_, base_.weight);
    std::vector<Tensor> shards;
    for (int p = group_.first(); p < group_.first() + group_.count(); ++p) {
      const Tensor own = contiguous(view::slice(ids, 1, p * each, (p + 1) * each));
      shards.push_back(embedding(dist::copy_to_group(group_, weight), own));
    }
    return shards.size() == 1 ? shards[0] : concat(shards, 0);
  }
};

template <class Base, class Other>
void replace_all(Module& module, const dist::ShardGroup& group) {
  std::vector<Base*> found;
  module.for_each_module([&](Module& m) {
    auto* const layer = dynamic_cast<Base*>(&m);
    if (layer != nullptr && layer->replacement() == nullptr && dynamic_cast<LinearShard*>(&m) == nullptr) {
      found.push_back(layer);
    }
  });
  for (Base* const layer : found) replace<Other>(*layer, group);
}

}  // namespace

void shard_tokens(Module& module, const dist::ShardGroup& group) {
  replace_all<LayerNorm, TokenLayerNorm>(module, group);
  replace_all<RmsNorm, TokenRmsNorm>(module, group);
  replace_all<Dropout, TokenDropout>(module, group);
  replace_all<Embedding, TokenEmbedding>(module, group);
  replace_all<Linear, TokenLinear>(module, group);
}

Tensor linear_tokens(const dist::ShardGroup& group, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     std::optional<DType> compute) {
  return linear_shards(group, x, weight, bias, compute, kernels::Activation::none, false);
}

Tensor to_heads(const dist::ShardGroup& group, const Tensor& x, std::int64_t projections) {
  return apply(dist::ExchangeHeads{group, projections, true}, x);
}

Tensor attend_by_heads(const dist::ShardGroup& group, std::span<const Tensor> of_heads,
                       FunctionRef<Tensor(std::size_t, std::span<const Tensor>)> attend) {
  const auto count = static_cast<std::int64_t>(group.count());
  std::vector<Tensor> results;
  for (std::int64_t p = 0; p < count; ++p) {
    std::vector<Tensor> own;
    for (const Tensor& x : of_heads) {
      const std::int64_t samples = x.size(0) / count;
      own.push_back(count == 1 ? x : slice(x, 0, p * samples, (p + 1) * samples));
    }
    const PathScope scope(std::to_string(group.first() + p));
    results.push_back(attend(static_cast<std::size_t>(p), own));
  }
  const Tensor all = count == 1 ? results[0] : concat(results, 0);
  results.clear();
  return apply(dist::ExchangeHeads{group, 1, false}, all);
}

Tensor add_to_tokens(const dist::ShardGroup& group, const Tensor& x, const Tensor& bias) {
  if (!group.cuts_sequence) return add(x, bias);
  std::vector<Tensor> rows;  // the bias per shard, so that gradients are made separately
  for (int p = 0; p < group.count(); ++p) rows.push_back(dist::copy_to_group(group, bias));
  const std::int64_t count = group.count(), samples = x.size(0) / count;
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(stack(rows), {count, 1, 1, x.size(2)})), x.shape());
}

Tensor add_positions(const dist::ShardGroup& group, const Tensor& x, const Tensor& rows) {
  if (!group.cuts_sequence) return add(x, rows);
  const std::int64_t count = group.count(), samples = x.size(0) / count, begin = group.begin(rows.size(0));
  const Tensor own = slice(dist::copy_to_group(group, rows), 0, begin, begin + count * x.size(1));
  const Tensor parts = reshape(x, {count, samples, x.size(1), x.size(2)});
  return reshape(add(parts, reshape(own, {count, 1, x.size(1), x.size(2)})), x.shape());
}

Fate keep_all_but_gathered(const OpType& type) {
  return &type == &op_type<dist::AllGather>() || &type == &op_type<dist::CopyToGroup>() ? Fate::drop : Fate::keep;
}

}  // namespace thimble::nn
