#include <thimble/models/llama/llama.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/models/transformer/sequence_parts.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {
namespace llama_detail {

constexpr double deviation = 0.02;

nn::LinearOptions projection(bool has_bias = false) {
  nn::LinearOptions options;
  options.has_bias = has_bias;
  options.deviation = deviation;
  return options;
}

std::int64_t key_width(const ModelOptions& sizes) { return sizes.width / sizes.heads * sizes.key_heads; }

}  // namespace llama_detail

LlamaLayer::LlamaLayer(const LlamaConfig& config, const nn::TensorOptions& on)
    : CutBlock(config.sizes, on),
      config_(config),
      norm1_(child<nn::RmsNorm>("input_layernorm", config.sizes.width, on, config.epsilon)),
      query_(cut_outputs("self_attn.q_proj", config.sizes.width, config.sizes.width, on,
                         llama_detail::projection(config.has_bias))),
      key_(cut_outputs("self_attn.k_proj", config.sizes.width, llama_detail::key_width(config.sizes), on,
                       llama_detail::projection(config.has_bias))),
      value_(cut_outputs("self_attn.v_proj", config.sizes.width, llama_detail::key_width(config.sizes), on,
                         llama_detail::projection(config.has_bias))),
      attention_out_(
          cut_inputs("self_attn.o_proj", config.sizes.width, config.sizes.width, on, llama_detail::projection())),
      norm2_(child<nn::RmsNorm>("post_attention_layernorm", config.sizes.width, on, config.epsilon)),
      gate_(cut_outputs("mlp.gate_proj", config.sizes.width, config.sizes.hidden, on, llama_detail::projection())),
      up_(cut_outputs("mlp.up_proj", config.sizes.width, config.sizes.hidden, on, llama_detail::projection())),
      down_(cut_inputs("mlp.down_proj", config.sizes.hidden, config.sizes.width, on, llama_detail::projection())) {}

Tensor LlamaLayer::attend(const Tensor& in, const Tensor& mask, const nn::CachedLayer* past) {  // (B, T, h)
  const ModelOptions& sizes = config_.sizes;
  const RotaryOptions turns{config_.theta, past != nullptr ? past->cache.length() : 0, config_.scaling};
  AttentionOptions options;
  options.window = sizes.window;
  options.mask = mask;
  const auto heads = [&](const Tensor& y, std::int64_t count) {  // (B, T, count / parts, D), a view
    return reshape(y, {y.size(0), y.size(1), count / team_.parts, sizes.width / sizes.heads});
  };
  const auto of_heads = [&](std::size_t p, std::span<const Tensor> qkv) {
    const Tensor q = rotary(heads(qkv[0], sizes.heads), turns), k = rotary(heads(qkv[1], sizes.key_heads), turns);
    const PathScope scope(part_name("self_attn", p));
    const Tensor y = attention(q, k, heads(qkv[2], sizes.key_heads), options);
    return reshape(y, {y.size(0), y.size(1), sizes.width / team_.parts});
  };
  const auto of_part = [&](std::size_t p, const Tensor& x) {
    if (team_.has_whole_layers) {
      const Tensor qkv[] = {product(*query_.parts[p], x), product(*key_.parts[p], x), product(*value_.parts[p], x)};
      return product(*attention_out_.parts[p], attend_by_heads(team_, qkv, 1, of_heads));
    }
    const Tensor q = rotary(heads((*query_.parts[p])(x), sizes.heads), turns);
    const Tensor k = rotary(heads((*key_.parts[p])(x), sizes.key_heads), turns);
    const Tensor v = heads((*value_.parts[p])(x), sizes.key_heads);
    const PathScope scope(part_name("self_attn", p));
    const Tensor y = past != nullptr               ? past->attend(q, k, v, sizes.window)
                     : sizes.build == Build::fused ? attention(q, k, v, options)
                                                   : attention_textbook(q, k, v, options);
    return (*attention_out_.parts[p])(reshape(y, {x.size(0), x.size(1), sizes.width / team_.parts}));
  };
  // The operand is cast once for the three of them.
  return sum_of_parts(nn::as_operand(norm_tokens(team_, norm1_, in), compute_), attention_out_.bias, of_part);
}

Tensor LlamaLayer::feed_forward(const Tensor& in) {
  if (config_.sizes.feed_forward == FeedForward::tiled) {
    return tiled_feed_forward(norm2_(in),
                              {*up_.parts[0], gate_.parts[0], *down_.parts[0], kernels::Activation::none, compute_});
  }
  return sum_of_parts(nn::as_operand(norm_tokens(team_, norm2_, in), compute_), down_.bias,
                      [&](std::size_t p, const Tensor& x) {
                        const Tensor gate = product(*gate_.parts[p], x);  // (B, T, f / parts)
                        const Tensor up = product(*up_.parts[p], x);
                        const auto gated = [&] {
                          const PathScope scope(part_name("mlp", p));
                          return config_.sizes.build == Build::fused ? swiglu(gate, up) : mul(silu(gate), up);
                        };
                        return product(*down_.parts[p], gated());
                      });
}

Tensor LlamaLayer::add_parts(const Tensor& x, const Tensor& mask, const nn::CachedLayer* past) {
  const Tensor y = nn::residual_sum(x, attend(x, mask, past));
  return nn::residual_sum(y, feed_forward(y));
}

Tensor LlamaLayer::forward(const Tensor& x) { return add_parts(x, Tensor(), nullptr); }

Tensor LlamaLayer::masked(const Tensor& x, const Tensor& mask) {
  const PathScope scope(path());
  return add_parts(x, mask, nullptr);
}

Tensor LlamaLayer::extend(const Tensor& x, nn::CachedLayer past) {
  const PathScope scope(path());
  return add_parts(x, Tensor(), &past);
}

Llama::Llama(const LlamaConfig& config, const nn::TensorOptions& on)
    : Decoder(config.sizes, on.compute), config_(config) {
  require_llama_sizes("llama", config.sizes);
  options_.function = {.epsilon = config.epsilon,
                       .rotary = RotaryPositions{config.theta, config.scaling},
                       .is_tied = config.is_tied,
                       .has_bias = config.has_bias,
                       .positions = config.positions};
  const dist::StagePlace& stage = config.sizes.stage;
  if (config.is_tied || stage.is_first()) {
    tokens_ = cut_table("model.embed_tokens", on, llama_detail::deviation);
  }
  const dist::StagePlace::Units own = stage.units(config.sizes.layers);
  for (std::int64_t i = own.first; i < own.end; ++i) {
    layers_.push_back(&child<LlamaLayer>("model.layers." + std::to_string(i), config, on));
  }
  if (!stage.is_last()) return;
  norm_ = &child<nn::RmsNorm>("model.norm", config.sizes.width, on, config.epsilon);
  if (config.is_tied) return;
  head_ = cut_head("lm_head", on, llama_detail::projection());
}

Model::SharedByStages Llama::shared_by_stages() { return is_tied() ? shared_parts(tokens_) : SharedByStages(); }

// Ids (B, T) -> (B, T, h).
Tensor Llama::embed(const Tensor& ids) {
  if (ids.rank() != 2 || ids.size(1) > options_.sequence) {
    throw ShapeError("llama: ids " + to_string(ids.shape()) +
                     "; (B, T) with T <= " + std::to_string(options_.sequence) + " is allowed");
  }
  return look_up(tokens_, ids);
}

// Ids (B, T), or what the stage before gives (B, T, h) -> what the head reads, or the next stage (B, T, h).
Tensor Llama::features(const Tensor& in, const Tensor& mask) {
  const PathScope scope(path());
  Tensor x = options_.stage.is_first() ? embed(in) : in;
  x = through_blocks(layers_, std::move(x), recomputes_blocks_,
                     [&](LlamaLayer& layer, const Tensor& of_layer) { return layer.masked(of_layer, mask); });
  return options_.stage.is_last() ? norm_tokens(options_.team, *norm_, std::exchange(x, Tensor())) : x;
}

Tensor Llama::forward(const Tensor& ids) { return forward(ids, Tensor()); }

Tensor Llama::forward(const Tensor& ids, const Tensor& mask) {
  if (!options_.stage.is_last()) return features(ids, mask);
  require_whole_vocabulary("llama");
  return logits(features(ids, mask));
}

// What the head reads (B, T, h) -> (B, T, V of this rank's parts).
Tensor Llama::logits(const Tensor& x) {
  const PathScope scope(path());
  const PathScope head("head");
  if (has_quantized_head()) return (*head_[0])(x);
  return score(x, [&](std::size_t p) { return head_weight(p); });
}

nn::KvCacheSizes Llama::cache_sizes() const {
  return {.layers = options_.layers,
          .heads = options_.key_heads,
          .width = options_.width / options_.heads,
          .dtype = whole_cache_dtype(compute_.value_or(tokens_[0]->weight.dtype()))};
}

Tensor Llama::extend(const Tensor& ids, nn::KvCache& cache) {
  check_extension("llama", ids, cache);
  const PathScope scope(path());
  Tensor x = look_up(tokens_, ids);  // (B, T, h)
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i]->extend(x, {cache, static_cast<std::int64_t>(i)});
  }
  cache.advance(ids.size(1));
  return logits((*norm_)(last_position(x)));
}

Tensor Llama::loss(const Batch& batch) {
  if (!options_.stage.is_last()) return forward(batch.input, batch.mask);
  if (options_.head == Head::chunked) {
    if (has_quantized_head()) throw ValueError("llama: expected a full head over quantized weights, got a chunked one");
    const Tensor x = features(batch.input, batch.mask);
    const PathScope scope(path());
    const PathScope head("loss");
    return chunked_token_loss(nn::as_operand(x, compute_), nn::as_operand(head_weight(0), compute_), Tensor(),
                              batch.target);
  }
  const Tensor scores = logits(features(batch.input, batch.mask));
  const PathScope scope(path());
  const PathScope head("loss");
  return loss_of(scores, batch.target);
}

std::vector<std::vector<std::string>> Llama::names_in_files(const std::string& name) const {
  if (!config_.is_tied || name != "model.embed_tokens.weight") return {};
  return {{"lm_head.weight"}};
}

Batch Llama::empty_batch(std::int64_t samples, Device device) const {
  return empty_token_batch(options_, samples, device);
}

namespace llama_detail {

constexpr std::array<TokenSizes, 8> family{{
    // layers, heads, width, sequence, vocabulary, dropout, heads of keys, hidden
    {"llama-3.2-1b", 16, 32, 2048, 2048, 128256, 0, 8, 8192},
    {"llama-3.2-3b", 28, 24, 3072, 2048, 128256, 0, 8, 8192},
    {"llama-3-8b", 32, 32, 4096, 2048, 128256, 0, 8, 14336},
    {"llama-3-70b", 80, 64, 8192, 2048, 128256, 0, 8, 28672},
    {"llama-2-7b", 32, 32, 4096, 2048, 32000, 0, 32, 11008},
    {"qwen2.5-0.5b", 24, 14, 896, 2048, 151936, 0, 2, 4864},
    {"qwen2.5-7b", 28, 28, 3584, 2048, 152064, 0, 4, 18944},
    {"tiny-llama", 6, 6, 384, 256, 65, 0, 2, 1024},
}};

// What a row's config.json says besides sizes.
struct Traits {
  double theta, epsilon;
  bool is_tied, has_bias;
  double stretch;  // the scaling's factor; 0: none
  std::int64_t positions;
};
constexpr std::array<Traits, family.size()> traits{{
    {500000, 1e-5, true, false, 32, 131072},
    {500000, 1e-5, true, false, 32, 131072},
    {500000, 1e-5, false, false, 0, 8192},
    {500000, 1e-5, false, false, 0, 8192},
    {10000, 1e-5, false, false, 0, 4096},
    {1000000, 1e-6, true, true, 0, 32768},
    {1000000, 1e-6, false, true, 0, 131072},
    {10000, 1e-5, true, false, 0, 256},
}};

bool is_member(std::string_view name) {
  return std::any_of(family.begin(), family.end(), [&](const TokenSizes& row) { return row.name == name; });
}

}  // namespace llama_detail

void require_llama_sizes(std::string_view name, const ModelOptions& sizes) {
  require_transformer_sizes(name, sizes);
  const std::int64_t head = sizes.width / sizes.heads;
  if (head % 2 != 0 || head > 512) {
    throw ValueError(std::string(name) + ": heads of " + std::to_string(head) +
                     " numbers; an even number of at most 512 is allowed, because pairs of them are turned");
  }
  if (sizes.dropout > 0) {
    throw ValueError(std::string(name) + ": dropout " + std::to_string(sizes.dropout) +
                     "; the family has none, and 0 alone is allowed");
  }
}

LlamaConfig llama_config(const ModelOptions& complete) {
  const ModelFunction& function = complete.function;
  LlamaConfig config;
  config.sizes = complete;
  config.theta = function.rotary->theta, config.scaling = function.rotary->scaling;
  config.epsilon = *function.epsilon;
  config.is_tied = *function.is_tied, config.has_bias = *function.has_bias;
  config.positions = *function.positions;
  return config;
}

LlamaConfig llama_config(std::string_view name, const ModelOptions& options) {
  LlamaConfig config;
  config.sizes = token_options("llama", llama_detail::family, name, options);
  require_llama_sizes(name, config.sizes);
  const auto own = std::find_if(llama_detail::family.begin(), llama_detail::family.end(),
                                [&](const TokenSizes& row) { return row.name == name; });
  const llama_detail::Traits& traits =
      llama_detail::traits[static_cast<std::size_t>(own - llama_detail::family.begin())];
  RotaryPositions rotary{traits.theta};
  if (traits.stretch > 0) rotary.scaling = RotaryScaling{.factor = traits.stretch};
  config.sizes.function = complete_function(name, options.function,
                                            {.epsilon = traits.epsilon,
                                             .rotary = rotary,
                                             .is_tied = traits.is_tied,
                                             .has_bias = traits.has_bias,
                                             .positions = traits.positions});
  return llama_config(config.sizes);
}

std::unique_ptr<Model> make_llama(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  if (!llama_detail::is_member(name)) return nullptr;
  const PathScope scope("llama");
  return std::make_unique<Llama>(llama_config(name, options), on);
}

}  // namespace thimble::models
