#include <thimble/models/gpt/gpt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/models/transformer/branch.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {
namespace {

// layers, heads, width, sequence, vocabulary, dropout
constexpr std::array<TokenSizes, 9> gpt_family{{{"gpt2", 12, 12, 768, 1024, 50257, 0.1},
                                                {"gpt2-medium", 24, 16, 1024, 1024, 50257, 0.1},
                                                {"gpt2-large", 36, 20, 1280, 1024, 50257, 0.1},
                                                {"gpt2-xl", 48, 25, 1600, 1024, 50257, 0.1},
                                                {"char-gpt", 6, 6, 384, 256, 65, 0.0},
                                                {"gpt-22b", 48, 64, 6144, 2048, 51200, 0.1},
                                                {"gpt-175b", 96, 96, 12288, 2048, 51200, 0.1},
                                                {"gpt-530b", 105, 128, 20480, 2048, 51200, 0.1},
                                                {"gpt-1t", 128, 160, 25600, 2048, 51200, 0.1}}};

constexpr double gpt_deviation = 0.02, gpt_epsilon = 1e-5;
constexpr GeluForm gpt_gelu = GeluForm::tanh;

// How a group shards the model; the rest of this file is independent of groups.
const nn::ShardedChild gpt_shards[] = {{"attn.c_attn", nn::Sharding::column, 3},
                                       {"attn.c_proj", nn::Sharding::row},
                                       {"mlp.c_fc", nn::Sharding::column},
                                       {"mlp.c_proj", nn::Sharding::row},
                                       {"wte", nn::Sharding::vocabulary}};

double gpt_epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(gpt_epsilon); }

nn::LinearOptions projection() { return {.weight_is_in_out = true, .deviation = gpt_deviation}; }

// Projections into the residual stream start smaller, by 1 / sqrt(their number) (Radford et al. 2019, section 2.3).
nn::LinearOptions residual_projection(const ModelOptions& sizes) {
  nn::LinearOptions options = projection();
  options.deviation = gpt_deviation / std::sqrt(2.0 * static_cast<double>(sizes.layers));
  return options;
}

}  // namespace

class GptAttention final : public Branch {
 public:
  GptAttention(const ModelOptions& sizes, const nn::TensorOptions& on)
      : Branch(on),
        c_attn_(child<nn::Linear>("c_attn", sizes.width, 3 * sizes.width, on, projection())),
        attend_(child<SelfAttention>("heads", SelfAttentionOptions{.head_width = sizes.width / sizes.heads,
                                                                   .is_causal = true,
                                                                   .window = sizes.window,
                                                                   .dropout = sizes.dropout,
                                                                   .build = sizes.build})),
        c_proj_(child<nn::Linear>("c_proj", sizes.width, sizes.width, on, residual_projection(sizes))) {}

 protected:
  Tensor forward(Tensor x, const AttentionInputs& with) override {  // (B, T, C)
    const Tensor qkv = c_attn_(std::exchange(x, Tensor()));         // (B, T, 3C)
    return c_proj_(attend_(qkv, with));                             // (B, T, C)
  }

 private:
  nn::Linear& c_attn_;
  SelfAttention& attend_;
  nn::Linear& c_proj_;
};

class GptBlock final : public TransformerBlock {
 public:
  GptBlock(const ModelOptions& sizes, const nn::TensorOptions& on)
      : ln_1_(child<nn::LayerNorm>("ln_1", sizes.width, on, gpt_epsilon_of(sizes))),
        attn_(child<GptAttention>("attn", sizes, on)),
        ln_2_(child<nn::LayerNorm>("ln_2", sizes.width, on, gpt_epsilon_of(sizes))),
        mlp_(child<GeluMlp>("mlp", sizes, on,
                            MlpOptions{.up = "c_fc",
                                       .down = "c_proj",
                                       .of_up = projection(),
                                       .of_down = residual_projection(sizes),
                                       .form = sizes.function.gelu.value_or(gpt_gelu)})),
        attn_drop_(child<nn::Dropout>("attn.dropout", sizes.dropout, sizes.build == Build::textbook)),
        mlp_drop_(child<nn::Dropout>("mlp.dropout", sizes.dropout, sizes.build == Build::textbook)) {}

  Tensor operator()(const Tensor& x, const AttentionInputs& with) override {  // (B, T, C)
    const PathScope scope(path());
    const Tensor y = nn::residual_sum(x, attn_drop_(attn_(ln_1_(x), with)));
    return nn::residual_sum(y, mlp_drop_(mlp_(ln_2_(y))));
  }

 private:
  nn::LayerNorm& ln_1_;
  GptAttention& attn_;
  nn::LayerNorm& ln_2_;
  GeluMlp& mlp_;
  nn::Dropout &attn_drop_, &mlp_drop_;
};

Gpt::Gpt(const ModelOptions& sizes, const nn::TensorOptions& on) : Decoder(sizes, on) {
  make_table("wte", on, gpt_deviation);
  if (has_embedding()) {
    wpe_ = &child<nn::Embedding>("wpe", sizes.sequence, sizes.width, on, gpt_deviation);
    drop_ = &child<nn::Dropout>("drop", sizes.dropout, sizes.build == Build::textbook);
  }
  make_blocks<GptBlock>(sizes, on);
  if (has_head()) ln_f_ = &child<nn::LayerNorm>("ln_f", sizes.width, on, gpt_epsilon_of(sizes));
}

Tensor Gpt::embed(const Tensor& ids, std::int64_t first) {                      // (B, T)
  const Tensor positions = slice(wpe_->weight, 0, first, first + ids.size(1));  // (T, C)
  return (*drop_)(add_positions(look_up(ids), positions));                      // (B, T, C)
}

// The head is the table: logits x W^T (B, T, V).
Tensor Gpt::finish(Tensor x) { return (*ln_f_)(x); }

std::vector<std::vector<std::string>> Gpt::names_in_files(const std::string& name) const {
  if (name != "wte.weight") return {};
  return {{"lm_head.weight"}};
}

ModelOptions gpt_options(std::string_view name, const ModelOptions& options) {
  ModelOptions sizes = token_options("gpt", gpt_family, name, options);
  sizes.function = complete_function(name, options.function, {.epsilon = gpt_epsilon, .gelu = gpt_gelu});
  return sizes;
}

std::unique_ptr<Model> make_gpt(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const auto is_named = [&](const TokenSizes& row) { return row.name == name; };
  if (std::none_of(gpt_family.begin(), gpt_family.end(), is_named)) return nullptr;
  const PathScope scope("gpt");
  return make_sharded<Gpt>(gpt_options(name, options), on, gpt_shards);
}

}  // namespace thimble::models
