#include <thimble/models/llama/llama.h>

#include <algorithm>
#include <array>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/models/transformer/branch.h>
#include <thimble/nn/quant/weight_only.h>

namespace thimble::models {
namespace {

constexpr double llama_deviation = 0.02;

nn::LinearOptions linear_options(bool has_bias = false) {
  nn::LinearOptions options;
  options.has_bias = has_bias;
  options.deviation = llama_deviation;
  return options;
}

// How a group shards the model.
const nn::ShardedChild llama_shards[] = {
    {"self_attn.q_proj", nn::Sharding::column}, {"self_attn.k_proj", nn::Sharding::column},
    {"self_attn.v_proj", nn::Sharding::column}, {"self_attn.o_proj", nn::Sharding::row},
    {"mlp.gate_proj", nn::Sharding::column},    {"mlp.up_proj", nn::Sharding::column},
    {"mlp.down_proj", nn::Sharding::row},       {"embed_tokens", nn::Sharding::vocabulary},
    {"lm_head", nn::Sharding::vocabulary}};

std::int64_t key_width(const ModelOptions& sizes) { return sizes.width / sizes.heads * sizes.key_heads; }

}  // namespace

class LlamaAttention final : public Branch {
 public:
  LlamaAttention(const LlamaConfig& config, const nn::TensorOptions& on)
      : Branch(on),
        q_proj_(
            child<nn::Linear>("q_proj", config.sizes.width, config.sizes.width, on, linear_options(config.has_bias))),
        k_proj_(child<nn::Linear>("k_proj", config.sizes.width, key_width(config.sizes), on,
                                  linear_options(config.has_bias))),
        v_proj_(child<nn::Linear>("v_proj", config.sizes.width, key_width(config.sizes), on,
                                  linear_options(config.has_bias))),
        attend_(child<SelfAttention>("heads",
                                     SelfAttentionOptions{.head_width = config.sizes.width / config.sizes.heads,
                                                          .window = config.sizes.window,
                                                          .build = config.sizes.build,
                                                          .rotary = RotaryPositions{config.theta, config.scaling}})),
        o_proj_(child<nn::Linear>("o_proj", config.sizes.width, config.sizes.width, on, linear_options())) {}

 protected:
  Tensor forward(Tensor x, const AttentionInputs& with) override {  // (B, T, h)
    x = nn::as_operand(x, q_proj_.compute());                       // cast once for all three
    const Tensor q = attend_.turned(q_proj_(x), with);              // (B, T, a, D)
    const Tensor k = attend_.turned(k_proj_(x), with);              // (B, T, g, D)
    const Tensor v = attend_.heads(v_proj_(x));                     // (B, T, g, D)
    return o_proj_(attend_(q, k, v, with));                         // (B, T, h)
  }

 private:
  nn::Linear &q_proj_, &k_proj_, &v_proj_;
  SelfAttention& attend_;
  nn::Linear& o_proj_;
};

class LlamaMlp final : public Branch {
 public:
  LlamaMlp(const ModelOptions& sizes, const nn::TensorOptions& on)
      : Branch(on),
        build_(sizes.build),
        feed_forward_(sizes.feed_forward),
        gate_proj_(child<nn::Linear>("gate_proj", sizes.width, sizes.hidden, on, linear_options())),
        up_proj_(child<nn::Linear>("up_proj", sizes.width, sizes.hidden, on, linear_options())),
        down_proj_(child<nn::Linear>("down_proj", sizes.hidden, sizes.width, on, linear_options())) {}

 protected:
  Tensor forward(Tensor x, const AttentionInputs&) override {  // (B, T, h)
    if (feed_forward_ == FeedForward::tiled) {
      return tiled_feed_forward(x, {up_proj_, &gate_proj_, down_proj_, kernels::Activation::none, up_proj_.compute()});
    }
    x = nn::as_operand(x, up_proj_.compute());
    const Tensor gate = gate_proj_(x), up = up_proj_(x);  // (B, T, f)
    return down_proj_(build_ == Build::fused ? swiglu(gate, up) : mul(silu(gate), up));
  }

 private:
  Build build_;
  FeedForward feed_forward_;
  nn::Linear &gate_proj_, &up_proj_, &down_proj_;
};

class LlamaLayer final : public TransformerBlock {
 public:
  LlamaLayer(const LlamaConfig& config, const nn::TensorOptions& on)
      : norm1_(child<nn::RmsNorm>("input_layernorm", config.sizes.width, on, config.epsilon)),
        self_attn_(child<LlamaAttention>("self_attn", config, on)),
        norm2_(child<nn::RmsNorm>("post_attention_layernorm", config.sizes.width, on, config.epsilon)),
        mlp_(child<LlamaMlp>("mlp", config.sizes, on)) {}

  Tensor operator()(const Tensor& x, const AttentionInputs& with) override {  // (B, T, h)
    const PathScope scope(path());
    const Tensor y = nn::residual_sum(x, self_attn_(norm1_(x), with));
    return nn::residual_sum(y, mlp_(norm2_(y)));
  }

 private:
  nn::RmsNorm& norm1_;
  LlamaAttention& self_attn_;
  nn::RmsNorm& norm2_;
  LlamaMlp& mlp_;
};

Llama::Llama(const LlamaConfig& config, const nn::TensorOptions& on) : Decoder(config.sizes, on), config_(config) {
  require_llama_sizes("llama", config.sizes);
  options_.function = {.epsilon = config.epsilon,
                       .rotary = RotaryPositions{config.theta, config.scaling},
                       .is_tied = config.is_tied,
                       .has_bias = config.has_bias,
                       .positions = config.positions};
  make_table("model.embed_tokens", on, llama_deviation);
  make_blocks<LlamaLayer>(config, on);
  if (!has_head()) return;
  norm_ = &child<nn::RmsNorm>("model.norm", config.sizes.width, on, config.epsilon);
  if (config.is_tied) return;
  lm_head_ =
      &child<nn::Linear>("lm_head", config.sizes.width, config.sizes.vocabulary, on.outside_blocks(), linear_options());
}

void Llama::find_head(HeadShards& shards) {
  if (lm_head_ == nullptr) return TokenModel::find_head(shards);
  nn::each_shard_weight(*lm_head_, [&](nn::Parameter& weight) { shards.weights.push_back(weight); });
}

nn::Linear* Llama::quantized_head() {
  const bool is_quantized =
      lm_head_ != nullptr && dynamic_cast<const nn::quant::Q8Linear*>(lm_head_->replacement()) != nullptr;
  return is_quantized ? lm_head_ : nullptr;
}

std::vector<std::vector<std::string>> Llama::names_in_files(const std::string& name) const {
  if (!config_.is_tied || name != "model.embed_tokens.weight") return {};
  return {{"lm_head.weight"}};
}

namespace {

constexpr std::array<TokenSizes, 8> llama_family{{
    // layers, heads, width, sequence, vocabulary, dropout, key heads, hidden
    {"llama-3.2-1b", 16, 32, 2048, 2048, 128256, 0, 8, 8192},
    {"llama-3.2-3b", 28, 24, 3072, 2048, 128256, 0, 8, 8192},
    {"llama-3-8b", 32, 32, 4096, 2048, 128256, 0, 8, 14336},
    {"llama-3-70b", 80, 64, 8192, 2048, 128256, 0, 8, 28672},
    {"llama-2-7b", 32, 32, 4096, 2048, 32000, 0, 32, 11008},
    {"qwen2.5-0.5b", 24, 14, 896, 2048, 151936, 0, 2, 4864},
    {"qwen2.5-7b", 28, 28, 3584, 2048, 152064, 0, 4, 18944},
    {"tiny-llama", 6, 6, 384, 256, 65, 0, 2, 1024},
}};

// The values of a row's config.json other than sizes.
struct Traits {
  double theta, epsilon;
  bool is_tied, has_bias;
  double stretch;  // the scaling's factor, or 0
  std::int64_t positions;
};
constexpr std::array<Traits, llama_family.size()> traits{{
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
  return std::any_of(llama_family.begin(), llama_family.end(), [&](const TokenSizes& row) { return row.name == name; });
}

}  // namespace

void require_llama_sizes(std::string_view name, const ModelOptions& sizes) {
  require_transformer_sizes(name, sizes);
  const std::int64_t head = sizes.width / sizes.heads;
  if (head % 2 != 0 || head > 512) {
    throw ValueError(std::string(name) + ": heads of " + std::to_string(head) +
                     " numbers; expected an even number of at most 512, because pairs of them are turned");
  }
  if (sizes.dropout > 0) {
    throw ValueError(std::string(name) + ": dropout " + std::to_string(sizes.dropout) +
                     "; the family has none; expected 0");
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
  config.sizes = token_options("llama", llama_family, name, options);
  require_llama_sizes(name, config.sizes);
  const auto own =
      std::find_if(llama_family.begin(), llama_family.end(), [&](const TokenSizes& row) { return row.name == name; });
  const Traits& chosen = traits[static_cast<std::size_t>(own - llama_family.begin())];
  RotaryPositions rotary{chosen.theta};
  if (chosen.stretch > 0) rotary.scaling = RotaryScaling{.factor = chosen.stretch};
  config.sizes.function = complete_function(name, options.function,
                                            {.epsilon = chosen.epsilon,
                                             .rotary = rotary,
                                             .is_tied = chosen.is_tied,
                                             .has_bias = chosen.has_bias,
                                             .positions = chosen.positions});
  return llama_config(config.sizes);
}

std::unique_ptr<Model> make_llama(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  if (!is_member(name)) return nullptr;
  const PathScope scope("llama");
  const LlamaConfig config = llama_config(name, options);
  return make_sharded<Llama>(config, config.sizes, on, llama_shards);
}

}  // namespace thimble::models
