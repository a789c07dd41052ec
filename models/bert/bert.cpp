#include <thimble/models/bert/bert.h>

#include <algorithm>
#include <array>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/models/transformer/branch.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {
namespace {

constexpr double bert_deviation = 0.02, bert_epsilon = 1e-12;
constexpr GeluForm bert_gelu = GeluForm::erf;
constexpr std::int64_t segments = 2;

// How a group shards the model.
const nn::ShardedChild bert_shards[] = {
    {"attention.self.query", nn::Sharding::column}, {"attention.self.key", nn::Sharding::column},
    {"attention.self.value", nn::Sharding::column}, {"attention.output.dense", nn::Sharding::row},
    {"intermediate.dense", nn::Sharding::column},   {"output.dense", nn::Sharding::row},
    {"word_embeddings", nn::Sharding::vocabulary}};

nn::LinearOptions dense(kernels::Activation activation = kernels::Activation::none) {
  nn::LinearOptions options;
  options.deviation = bert_deviation;
  options.activation = activation;
  return options;
}

double bert_epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(bert_epsilon); }
GeluForm form_of(const ModelOptions& sizes) { return sizes.function.gelu.value_or(bert_gelu); }

nn::LinearOptions dense_gelu(const ModelOptions& sizes) {
  return dense(sizes.build == Build::fused ? gelu_activation(form_of(sizes)) : kernels::Activation::none);
}

// In the textbook build gelu is a separate operator, under `name`.
Tensor gelu_if_textbook(const Tensor& x, const ModelOptions& sizes, std::string_view name) {
  if (sizes.build == Build::fused) return x;
  const PathScope scope(name);
  return gelu(x, form_of(sizes));
}

}  // namespace

class BertAttention final : public Branch {
 public:
  BertAttention(const ModelOptions& sizes, const nn::TensorOptions& on)
      : Branch(on),
        query_(child<nn::Linear>("self.query", sizes.width, sizes.width, on, dense())),
        key_(child<nn::Linear>("self.key", sizes.width, sizes.width, on, dense())),
        value_(child<nn::Linear>("self.value", sizes.width, sizes.width, on, dense())),
        attend_(child<SelfAttention>("self", SelfAttentionOptions{.head_width = sizes.width / sizes.heads,
                                                                  .is_causal = false,
                                                                  .window = sizes.window,
                                                                  .dropout = sizes.dropout,
                                                                  .build = sizes.build,
                                                                  .name = "self"})),
        out_(child<nn::Linear>("output.dense", sizes.width, sizes.width, on, dense())) {}

 protected:
  Tensor forward(Tensor x, const AttentionInputs& with) override {  // (B, T, C)
    x = nn::as_operand(x, query_.compute());                        // cast once for all three
    const Tensor q = attend_.heads(query_(x)), k = attend_.heads(key_(x)), v = attend_.heads(value_(x));
    return out_(attend_(q, k, v, with));  // (B, T, C)
  }

 private:
  nn::Linear &query_, &key_, &value_;
  SelfAttention& attend_;
  nn::Linear& out_;
};

/// norm(x + attention(x)), then norm(x + mlp(x)).
class BertLayer final : public TransformerBlock {
 public:
  BertLayer(const ModelOptions& sizes, const nn::TensorOptions& on)
      : attention_(child<BertAttention>("attention", sizes, on)),
        attention_dropout_(
            child<nn::Dropout>("attention.output.dropout", sizes.dropout, sizes.build == Build::textbook)),
        norm1_(child<nn::LayerNorm>("attention.output.LayerNorm", sizes.width, on, bert_epsilon_of(sizes))),
        mlp_(own_child<GeluMlp>(sizes, on,
                                MlpOptions{.up = "intermediate.dense",
                                           .down = "output.dense",
                                           .gelu = "intermediate.gelu",
                                           .of_up = dense(),
                                           .of_down = dense(),
                                           .form = form_of(sizes)})),
        mlp_dropout_(child<nn::Dropout>("output.dropout", sizes.dropout, sizes.build == Build::textbook)),
        norm2_(child<nn::LayerNorm>("output.LayerNorm", sizes.width, on, bert_epsilon_of(sizes))) {}

  Tensor operator()(const Tensor& x, const AttentionInputs& with) override {  // (B, T, C)
    const PathScope scope(path());
    const Tensor y = norm1_(nn::residual_sum(x, attention_dropout_(attention_(x, with))));
    return norm2_(nn::residual_sum(y, mlp_dropout_(mlp_(y))));
  }

 private:
  BertAttention& attention_;
  nn::Dropout& attention_dropout_;
  nn::LayerNorm& norm1_;
  GeluMlp& mlp_;
  nn::Dropout& mlp_dropout_;
  nn::LayerNorm& norm2_;
};

Bert::Bert(const ModelOptions& sizes, const nn::TensorOptions& on) : TokenModel(sizes, on) {
  const auto add_table = [&](const char* name, std::int64_t rows) {
    return &child<nn::Embedding>(std::string("bert.embeddings.") + name, rows, sizes.width, on, bert_deviation);
  };
  make_table("bert.embeddings.word_embeddings", on, bert_deviation);
  if (has_embedding()) {
    positions_ = add_table("position_embeddings", sizes.sequence);
    types_ = add_table("token_type_embeddings", segments);
    norm_ = &child<nn::LayerNorm>("bert.embeddings.LayerNorm", sizes.width, on, bert_epsilon_of(sizes));
    dropout_ = &child<nn::Dropout>("bert.embeddings.dropout", sizes.dropout, sizes.build == Build::textbook);
  }
  make_blocks<BertLayer>(sizes, on);
  if (!has_head()) return;
  transform_ = &child<nn::Linear>("cls.predictions.transform.dense", sizes.width, sizes.width, on.outside_blocks(),
                                  dense_gelu(sizes));
  transform_norm_ =
      &child<nn::LayerNorm>("cls.predictions.transform.LayerNorm", sizes.width, on, bert_epsilon_of(sizes));
  head_bias_ = make_head_bias("cls.predictions", on);
}

Tensor Bert::embed(const Tensor& ids, std::int64_t first) {  // (B, T)
  const PathScope scope("bert.embeddings");
  const Tensor positions = slice(positions_->weight, 0, first, first + ids.size(1));  // (T, C)
  const Tensor type = slice(types_->weight, 0, 0, 1);                                 // (1, C): segment 0
  const Tensor sum = add_positions(look_up(ids), add(positions, type));
  return (*dropout_)((*norm_)(sum));
}

Tensor Bert::finish(Tensor x) {  // (B, T, C)
  const Tensor y = (*transform_)(x);
  return (*transform_norm_)(gelu_if_textbook(y, options_, "cls.predictions.transform.gelu"));
}

void Bert::find_head(HeadShards& shards) {
  TokenModel::find_head(shards);
  for (nn::Parameter* const bias : head_bias_) shards.biases.push_back(*bias);
  shards.path = "cls.predictions.decoder";
}

std::vector<std::vector<std::string>> Bert::names_in_files(const std::string& name) const {
  std::vector<std::string> names{name};
  const std::size_t last = name.rfind('.') + 1;
  if (name.substr(0, last).ends_with("LayerNorm.")) {
    names.push_back(name.substr(0, last) + (name.substr(last) == "weight" ? "gamma" : "beta"));
  }
  if (name == "bert.embeddings.word_embeddings.weight") names.emplace_back("cls.predictions.decoder.weight");
  if (name == "cls.predictions.bias") names.emplace_back("cls.predictions.decoder.bias");
  std::vector<std::vector<std::string>> lists;
  constexpr std::string_view prefix = "bert.";
  for (const std::string& each : names) {
    if (each != name) lists.push_back({each});
    if (each.starts_with(prefix)) lists.push_back({each.substr(prefix.size())});
  }
  return lists;
}

std::vector<std::string> Bert::passed_over() const {
  return {"pooler.dense.weight", "pooler.dense.bias", "seq_relationship.weight", "seq_relationship.bias",
          "embeddings.position_ids"};
}

namespace {

constexpr std::array<TokenSizes, 2> bert_family{
    {{"bert-base", 12, 12, 768, 512, 30522, 0.1}, {"bert-large", 24, 16, 1024, 512, 30522, 0.1}}};

}  // namespace

ModelOptions bert_options(std::string_view name, const ModelOptions& options) {
  ModelOptions sizes = token_options("bert", bert_family, name, options);
  sizes.function = complete_function(name, options.function, {.epsilon = bert_epsilon, .gelu = bert_gelu});
  return sizes;
}

std::unique_ptr<Model> make_bert(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const auto is_named = [&](const TokenSizes& row) { return row.name == name; };
  if (std::none_of(bert_family.begin(), bert_family.end(), is_named)) return nullptr;
  const PathScope scope("bert");
  return make_sharded<Bert>(bert_options(name, options), on, bert_shards);
}

}  // namespace thimble::models
