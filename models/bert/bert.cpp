#include <thimble/models/bert/bert.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/models/transformer/sequence_parts.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/layers/init.h>

namespace thimble::models {
namespace bert_detail {

constexpr double deviation = 0.02, epsilon = 1e-12;
constexpr GeluForm gelu_form = GeluForm::erf;
constexpr std::int64_t segments = 2;

nn::LinearOptions dense(kernels::Activation activation = kernels::Activation::none) {
  nn::LinearOptions options;
  options.deviation = deviation;
  options.activation = activation;
  return options;
}

double epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(epsilon); }
GeluForm form_of(const ModelOptions& sizes) { return sizes.function.gelu.value_or(gelu_form); }

nn::LinearOptions dense_gelu(const ModelOptions& sizes) {
  return dense(sizes.build == Build::fused ? gelu_activation(form_of(sizes)) : kernels::Activation::none);
}

// The activation under `name`, where it is an operator of its own.
Tensor gelu_if_textbook(const Tensor& x, const ModelOptions& sizes, std::string_view name) {
  if (sizes.build == Build::fused) return x;
  const PathScope scope(name);
  return gelu(x, form_of(sizes));
}

}  // namespace bert_detail

BertLayer::BertLayer(const ModelOptions& sizes, const nn::TensorOptions& on)
    : CutBlock(sizes, on),
      sizes_(sizes),
      query_(cut_outputs("attention.self.query", sizes.width, sizes.width, on, bert_detail::dense())),
      key_(cut_outputs("attention.self.key", sizes.width, sizes.width, on, bert_detail::dense())),
      value_(cut_outputs("attention.self.value", sizes.width, sizes.width, on, bert_detail::dense())),
      attention_out_(cut_inputs("attention.output.dense", sizes.width, sizes.width, on, bert_detail::dense())),
      attention_dropout_(child<nn::Dropout>("attention.output.dropout", sizes.dropout, sizes.build == Build::textbook)),
      norm1_(child<nn::LayerNorm>("attention.output.LayerNorm", sizes.width, on, bert_detail::epsilon_of(sizes))),
      up_(cut_outputs("intermediate.dense", sizes.width, 4 * sizes.width, on, bert_detail::dense_gelu(sizes))),
      down_(cut_inputs("output.dense", 4 * sizes.width, sizes.width, on, bert_detail::dense())),
      mlp_dropout_(child<nn::Dropout>("output.dropout", sizes.dropout, sizes.build == Build::textbook)),
      norm2_(child<nn::LayerNorm>("output.LayerNorm", sizes.width, on, bert_detail::epsilon_of(sizes))) {}

Tensor BertLayer::attend(const Tensor& in, const Tensor& mask) {  // (B, T, C)
  AttentionOptions options;
  options.causal = false;
  options.window = sizes_.window;
  options.mask = mask;
  options.dropout = is_training() ? sizes_.dropout : 0;
  const auto of_heads = [&](std::size_t p, std::span<const Tensor> qkv) {
    const auto heads = [&](const Tensor& y) {
      return reshape(y, {y.size(0), y.size(1), sizes_.heads / team_.parts, sizes_.width / sizes_.heads});
    };
    const PathScope scope(part_name("attention.self", p));
    const Tensor y = attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), options);
    return reshape(y, {y.size(0), y.size(1), sizes_.width / team_.parts});
  };
  const auto of_part = [&](std::size_t p, const Tensor& x) {
    if (team_.has_whole_layers) {
      const Tensor qkv[] = {product(*query_.parts[p], x), product(*key_.parts[p], x), product(*value_.parts[p], x)};
      return product(*attention_out_.parts[p], attend_by_heads(team_, qkv, 1, of_heads));
    }
    const Shape heads{x.size(0), x.size(1), sizes_.heads / team_.parts, sizes_.width / sizes_.heads};
    const Tensor q = reshape((*query_.parts[p])(x), heads), k = reshape((*key_.parts[p])(x), heads),
                 v = reshape((*value_.parts[p])(x), heads);
    const PathScope scope(part_name("attention.self", p));
    const Tensor y = sizes_.build == Build::fused ? attention(q, k, v, options)
                                                  : attention_textbook(q, k, v, options);  // (B, T, H / parts, D)
    return (*attention_out_.parts[p])(reshape(y, {x.size(0), x.size(1), sizes_.width / team_.parts}));
  };
  // The operand is cast once for the three of them.
  return drop_tokens(team_, attention_dropout_,
                     sum_of_parts(nn::as_operand(in, compute_), attention_out_.bias, of_part));
}

Tensor BertLayer::feed_forward(const Tensor& x) {
  if (sizes_.feed_forward == FeedForward::tiled) {
    return mlp_dropout_(tiled_feed_forward(
        x, {*up_.parts[0], nullptr, *down_.parts[0], gelu_activation(bert_detail::form_of(sizes_)), compute_}));
  }
  return drop_tokens(team_, mlp_dropout_, sum_of_parts(x, down_.bias, [&](std::size_t p, Tensor in) {
                       Tensor y = product(*up_.parts[p], std::exchange(in, Tensor()));  // (B, T, 4C / parts)
                       if (sizes_.build == Build::textbook) {
                         const PathScope scope(part_name("intermediate.gelu", p));
                         y = gelu(y, bert_detail::form_of(sizes_));
                       }
                       return product(*down_.parts[p], y);
                     }));
}

Tensor BertLayer::add_parts(const Tensor& x, const Tensor& mask) {
  const Tensor y = norm_tokens(team_, norm1_, nn::residual_sum(x, attend(x, mask)));
  return norm_tokens(team_, norm2_, nn::residual_sum(y, feed_forward(y)));
}

Tensor BertLayer::forward(const Tensor& x) { return add_parts(x, Tensor()); }

Tensor BertLayer::masked(const Tensor& x, const Tensor& mask) {
  const PathScope scope(path());
  return add_parts(x, mask);
}

Bert::HeadBias::HeadBias(const nn::init::PartOf& of_part, const nn::TensorOptions& on)
    : part(of_part), bias(add_parameter("bias", nn::init::constant(part.shape(), 0, on.dtype, on.device))) {}

std::optional<nn::PlaceInWhole> Bert::HeadBias::place_in_whole(const Tensor&) const {
  if (part.parts == 1) return {};
  return nn::PlaceInWhole{part};
}

Bert::Bert(const ModelOptions& sizes, const nn::TensorOptions& on) : TokenModel(sizes, on.compute) {
  const dist::StagePlace& stage = sizes.stage;
  const auto add_table = [&](const char* name, std::int64_t rows) {
    return &child<nn::Embedding>(std::string("bert.embeddings.") + name, rows, sizes.width, on, bert_detail::deviation);
  };
  words_ = cut_table("bert.embeddings.word_embeddings", on, bert_detail::deviation);
  if (stage.is_first()) {
    positions_ = add_table("position_embeddings", sizes.sequence);
    types_ = add_table("token_type_embeddings", bert_detail::segments);
    norm_ = &child<nn::LayerNorm>("bert.embeddings.LayerNorm", sizes.width, on, bert_detail::epsilon_of(sizes));
    dropout_ = &child<nn::Dropout>("bert.embeddings.dropout", sizes.dropout, sizes.build == Build::textbook);
  }
  const dist::StagePlace::Units own = stage.units(sizes.layers);
  for (std::int64_t i = own.first; i < own.end; ++i) {
    layers_.push_back(&child<BertLayer>("bert.encoder.layer." + std::to_string(i), sizes, on));
  }
  if (!stage.is_last()) return;
  transform_ = &child<nn::Linear>("cls.predictions.transform.dense", sizes.width, sizes.width, on.outside_blocks(),
                                  bert_detail::dense_gelu(sizes));
  transform_norm_ =
      &child<nn::LayerNorm>("cls.predictions.transform.LayerNorm", sizes.width, on, bert_detail::epsilon_of(sizes));
  const dist::Team& team = sizes.team;
  for (int p = 0; p < (is_cut() ? team.count() : 1); ++p) {
    const std::string part = is_cut() ? "." + std::to_string(team.first() + p) : "";
    const nn::init::PartOf classes{{sizes.vocabulary}, 0, is_cut() ? team.parts : 1, is_cut() ? team.first() + p : 0};
    head_.push_back(&child<HeadBias>("cls.predictions" + part, classes, on));
  }
}

Model::SharedByStages Bert::shared_by_stages() { return shared_parts(words_); }

// Ids (B, T) -> (B, T, C).
Tensor Bert::embed(const Tensor& ids) {
  if (ids.rank() != 2 || ids.size(1) > options_.sequence) {
    throw ShapeError("bert: ids " + to_string(ids.shape()) + "; (B, T) with T <= " + std::to_string(options_.sequence) +
                     " is allowed");
  }
  const PathScope scope("bert.embeddings");
  const Tensor positions = slice(positions_->weight, 0, 0, ids.size(1));  // (T, C)
  const Tensor type = slice(types_->weight, 0, 0, 1);                     // (1, C): segment 0
  const Tensor sum = add_positions(options_.team, look_up(words_, ids), add(positions, type));
  return drop_tokens(options_.team, *dropout_, norm_tokens(options_.team, *norm_, sum));
}

// Ids (B, T), or what the stage before gives (B, T, C) -> what the head reads, or the next stage (B, T, C).
Tensor Bert::features(const Tensor& in, const Tensor& mask) {
  const PathScope scope(path());
  const Tensor x =
      through_blocks(layers_, options_.stage.is_first() ? embed(in) : in, recomputes_blocks_,
                     [&](BertLayer& layer, const Tensor& of_layer) { return layer.masked(of_layer, mask); });
  if (!options_.stage.is_last()) return x;
  const Tensor y = bert_detail::gelu_if_textbook(linear_tokens(options_.team, *transform_, x), options_,
                                                 "cls.predictions.transform.gelu");
  return norm_tokens(options_.team, *transform_norm_, y);
}

Tensor Bert::forward(const Tensor& ids) { return forward(ids, Tensor()); }

Tensor Bert::forward(const Tensor& ids, const Tensor& mask) {
  if (!options_.stage.is_last()) return features(ids, mask);
  require_whole_vocabulary("bert");
  return logits(features(ids, mask));
}

// What the head reads (B, T, C) -> (B, T, V of this rank's parts).
Tensor Bert::logits(const Tensor& x) {
  const PathScope scope(path());
  const PathScope decoder("cls.predictions.decoder");
  return score(
      x, [&](std::size_t p) { return tied_weight(words_, p); },
      [&](std::size_t p) -> Tensor { return head_[p]->bias; });
}

Tensor Bert::loss(const Batch& batch) {
  if (!options_.stage.is_last()) return forward(batch.input, batch.mask);
  if (options_.head == Head::chunked) {
    const Tensor x = features(batch.input, batch.mask);
    const PathScope scope(path());
    const PathScope head("loss");
    return chunked_token_loss(nn::as_operand(x, compute_), nn::as_operand(tied_weight(words_, 0), compute_),
                              nn::as_operand(head_[0]->bias, compute_), batch.target);
  }
  const Tensor scores = logits(features(batch.input, batch.mask));
  const PathScope scope(path());
  const PathScope head("loss");
  return loss_of(scores, batch.target);
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

Batch Bert::empty_batch(std::int64_t samples, Device device) const {
  return empty_token_batch(options_, samples, device);
}

namespace bert_detail {

constexpr std::array<TokenSizes, 2> family{
    {{"bert-base", 12, 12, 768, 512, 30522, 0.1}, {"bert-large", 24, 16, 1024, 512, 30522, 0.1}}};

}  // namespace bert_detail

ModelOptions bert_options(std::string_view name, const ModelOptions& options) {
  ModelOptions sizes = token_options("bert", bert_detail::family, name, options);
  sizes.function =
      complete_function(name, options.function, {.epsilon = bert_detail::epsilon, .gelu = bert_detail::gelu_form});
  return sizes;
}

std::unique_ptr<Model> make_bert(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const auto is_named = [&](const TokenSizes& row) { return row.name == name; };
  if (std::none_of(bert_detail::family.begin(), bert_detail::family.end(), is_named)) return nullptr;
  const PathScope scope("bert");
  return std::make_unique<Bert>(bert_options(name, options), on);
}

}  // namespace thimble::models
