#include <thimble/models/transformer/branch.h>

#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/parallel/tokens.h>

namespace thimble::models {

Tensor Branch::operator()(Tensor x, const AttentionInputs& with) {
  const PathScope scope(path());
  if (rules_ == nullptr) return forward(std::move(x), with);
  if (last_ == nullptr) {
    for_each_module([&](nn::Module& m) {
      if (auto* const row = dynamic_cast<nn::RowParallelLinear*>(&m)) last_ = row;
    });
  }
  return rules_->run(std::move(x), *last_, [&](Tensor own) { return forward(std::move(own), with); });
}

namespace {

PathId below(std::string_view name) { return name.empty() ? context().path : join_path(context().path, name); }

// (B, T, 3 H D) -> (B, T, H D).
Tensor attend_cached(const Tensor& qkv, std::int64_t head_width, const nn::CachedLayer& past, std::int64_t window) {
  const std::int64_t width = qkv.size(2) / 3;
  const auto third = [&](std::int64_t i) {
    const Tensor part = view::slice(qkv, 2, i * width, (i + 1) * width);
    return view::reshape(part, {qkv.size(0), qkv.size(1), width / head_width, head_width});
  };
  return view::reshape(past.attend(third(0), third(1), third(2), window), {qkv.size(0), qkv.size(1), width});
}

}  // namespace

AttentionOptions SelfAttention::attention_options(const AttentionInputs& with) const {
  AttentionOptions options;
  options.causal = options_.is_causal;
  options.window = options_.window;
  options.mask = with.mask;
  options.dropout = is_training() ? options_.dropout : 0;
  return options;
}

Tensor SelfAttention::operator()(const Tensor& qkv, const AttentionInputs& with) {
  const PathScope scope(below(options_.name));
  const auto attend_all = [&](std::size_t, std::span<const Tensor> x) {
    const std::int64_t heads = x[0].size(2) / (3 * options_.head_width);
    if (with.past != nullptr) return attend_cached(x[0], options_.head_width, *with.past, options_.window);
    const AttentionOptions options = attention_options(with);
    return options_.build == Build::fused ? attention(x[0], heads, options) : attention_textbook(x[0], heads, options);
  };
  if (!group_) return attend_all(0, {&qkv, 1});
  const Tensor of_heads = nn::to_heads(*group_, qkv, 3);
  return nn::attend_by_heads(*group_, {&of_heads, 1}, attend_all);
}

Tensor SelfAttention::heads(const Tensor& x) const {
  const Tensor y = group_ ? nn::to_heads(*group_, x, 1) : x;
  return reshape(y, {y.size(0), y.size(1), y.size(2) / options_.head_width, options_.head_width});
}

Tensor SelfAttention::turned(const Tensor& x, const AttentionInputs& with) const {
  const std::int64_t first = with.past != nullptr ? with.past->cache.length() : 0;
  return rotary(heads(x), {options_.rotary->theta, first, options_.rotary->scaling});
}

Tensor SelfAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionInputs& with) const {
  const AttentionOptions options = attention_options(with);
  const Tensor y = with.past != nullptr             ? with.past->attend(q, k, v, options_.window)
                   : options_.build == Build::fused ? attention(q, k, v, options)
                                                    : attention_textbook(q, k, v, options);  // (B, T, H, D)
  return reshape(y, {y.size(0), y.size(1), y.size(2) * y.size(3)});
}

Tensor SelfAttention::operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionInputs& with) {
  const PathScope scope(below(options_.name));
  if (!group_) return attend(q, k, v, with);
  const Tensor of_heads[] = {q, k, v};
  return nn::attend_by_heads(*group_, of_heads,
                             [&](std::size_t, std::span<const Tensor> x) { return attend(x[0], x[1], x[2], with); });
}

namespace {

nn::LinearOptions up_options(const MlpOptions& options, Build build) {
  nn::LinearOptions up = options.of_up;
  if (build == Build::fused) up.activation = gelu_activation(options.form);
  return up;
}

}  // namespace

GeluMlp::GeluMlp(const ModelOptions& sizes, const nn::TensorOptions& on, const MlpOptions& options)
    : Branch(on),
      build_(sizes.build),
      feed_forward_(sizes.feed_forward),
      options_(options),
      up_(child<nn::Linear>(options.up, sizes.width, 4 * sizes.width, on, up_options(options, sizes.build))),
      dropout_(options.dropout.empty()
                   ? nullptr
                   : &child<nn::Dropout>(options.dropout, sizes.dropout, sizes.build == Build::textbook)),
      down_(child<nn::Linear>(options.down, 4 * sizes.width, sizes.width, on, options.of_down)) {}

Tensor GeluMlp::forward(Tensor x, const AttentionInputs&) {  // (B, T, C)
  if (feed_forward_ == FeedForward::tiled) {
    return tiled_feed_forward(x, {up_, nullptr, down_, up_.activation(), up_.compute()});
  }
  Tensor y = up_(std::exchange(x, Tensor()));  // (B, T, 4C); fused, gelu is the product's epilogue
  if (build_ == Build::textbook) {
    const PathScope scope(options_.gelu);
    y = gelu(y, options_.form);
  }
  return down_(dropout_ != nullptr ? (*dropout_)(y) : y);  // (B, T, C)
}

nn::TensorOptions with_shards(const nn::TensorOptions& on, const ModelOptions& sizes,
                              std::span<const nn::ShardedChild> table) {
  const dist::ShardGroup& group = sizes.group;
  if (group.shards == 1) return on;
  const std::string start = std::string(group.option()) + ": " + std::to_string(group.shards) + " shards: ";
  const auto divides = [&](std::int64_t count, const char* what) {
    if (count % group.shards == 0) return;
    throw ValueError(start + std::to_string(count) + " " + what + "; expected a divisor");
  };
  divides(sizes.heads, "heads");
  divides(sizes.key_heads, "heads of keys and values");
  if (group.cuts_layers()) divides(sizes.hidden, "columns inside of the feed-forward layer");
  if (sizes.feed_forward == FeedForward::tiled) {
    throw ValueError(start + "not with feed-forward layers in tiles; expected full ones");
  }
  if (on.fp8) throw ValueError(start + "not with products in FP8; expected f32, f16 or bf16");
  if (on.coded_weights != nullptr) throw ValueError(start + "not with coded weights; expected plain ones");
  nn::TensorOptions sharded = on;
  if (group.cuts_layers()) sharded.rules = std::make_shared<nn::ShardRules>(group, table);
  return sharded;
}

void finish_shards(Model& model, const nn::TensorOptions& on) {
  if (const auto* const rules = dynamic_cast<const nn::ShardRules*>(on.rules.get())) rules->finish(model);
  const dist::ShardGroup& group = model.options().group;
  if (!group.cuts_sequence || group.shards == 1) return;
  nn::shard_tokens(model, group);
  if (!group.has_whole_layers) return;
  model.for_each_module([&](nn::Module& m) {
    if (auto* const attention = dynamic_cast<SelfAttention*>(&m)) attention->exchange_heads(group);
  });
}

}  // namespace thimble::models
