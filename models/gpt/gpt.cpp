#include <thimble/models/gpt/gpt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/view.h>
#include <thimble/models/transformer/sequence_parts.h>
#include <thimble/models/transformer/transformer.h>

namespace thimble::models {
namespace gpt_detail {

constexpr double deviation = 0.02;

nn::LinearOptions projection(double scale, kernels::Activation activation = kernels::Activation::none) {
  nn::LinearOptions options;
  options.weight_is_in_out = true;
  options.deviation = scale;
  options.activation = activation;
  return options;
}

// Projections that end on the residual stream start smaller, by 1 / sqrt(number of them) (Radford et al. 2019,
// section 2.3).
double residual_deviation(const ModelOptions& sizes) {
  return deviation / std::sqrt(2.0 * static_cast<double>(sizes.layers));
}

constexpr double epsilon = 1e-5;
constexpr GeluForm gelu_form = GeluForm::tanh;

double epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(epsilon); }
GeluForm form_of(const ModelOptions& sizes) { return sizes.function.gelu.value_or(gelu_form); }

kernels::Activation fused_gelu(const ModelOptions& sizes) {
  return sizes.build == Build::fused ? gelu_activation(form_of(sizes)) : kernels::Activation::none;
}

// (B, T, 3C) -> (B, T, C).
Tensor attend_cached(const Tensor& qkv, std::int64_t heads, const nn::CachedLayer& past, std::int64_t window) {
  const std::int64_t width = qkv.size(2) / 3;
  const auto third = [&](std::int64_t i) {
    const Tensor part = view::slice(qkv, 2, i * width, (i + 1) * width);
    return view::reshape(part, {qkv.size(0), qkv.size(1), heads, width / heads});
  };
  const PathScope scope("attn");
  return view::reshape(past.attend(third(0), third(1), third(2), window), {qkv.size(0), qkv.size(1), width});
}

}  // namespace gpt_detail

GptBlock::GptBlock(const ModelOptions& sizes, const nn::TensorOptions& on)
    : CutBlock(sizes, on),
      sizes_(sizes),
      norm1_(child<nn::LayerNorm>("ln_1", sizes.width, on, gpt_detail::epsilon_of(sizes))),
      qkv_(cut_outputs("attn.c_attn", sizes.width, 3 * sizes.width, on, gpt_detail::projection(gpt_detail::deviation),
                       3)),
      attention_out_(cut_inputs("attn.c_proj", sizes.width, sizes.width, on,
                                gpt_detail::projection(gpt_detail::residual_deviation(sizes)))),
      norm2_(child<nn::LayerNorm>("ln_2", sizes.width, on, gpt_detail::epsilon_of(sizes))),
      up_(cut_outputs("mlp.c_fc", sizes.width, 4 * sizes.width, on,
                      gpt_detail::projection(gpt_detail::deviation, gpt_detail::fused_gelu(sizes)))),
      down_(cut_inputs("mlp.c_proj", 4 * sizes.width, sizes.width, on,
                       gpt_detail::projection(gpt_detail::residual_deviation(sizes)))),
      attention_dropout_(child<nn::Dropout>("attn.dropout", sizes.dropout, sizes.build == Build::textbook)),
      mlp_dropout_(child<nn::Dropout>("mlp.dropout", sizes.dropout, sizes.build == Build::textbook)) {}

Tensor GptBlock::attend(const Tensor& x, const Tensor& mask, const nn::CachedLayer* past) {  // (B, T, C)
  const std::int64_t heads = sizes_.heads / team_.parts;                                     // of a part
  if (past != nullptr) {
    const Tensor qkv = (*qkv_.parts[0])(norm1_(x));  // (B, T, 3C)
    return (*attention_out_.parts[0])(gpt_detail::attend_cached(qkv, heads, *past, sizes_.window));
  }
  AttentionOptions options;
  options.causal = true;
  options.window = sizes_.window;
  options.mask = mask;
  options.dropout = is_training() ? sizes_.dropout : 0;
  const auto attend_part = [&](std::size_t p, std::span<const Tensor> qkv) {
    const PathScope scope(part_name("attn", p));
    return sizes_.build == Build::fused ? attention(qkv[0], heads, options)
                                        : attention_textbook(qkv[0], heads, options);
  };
  return drop_tokens(team_, attention_dropout_,
                     sum_of_parts(norm_tokens(team_, norm1_, x), attention_out_.bias, [&](std::size_t p, Tensor in) {
                       const Tensor qkv = product(*qkv_.parts[p], std::exchange(in, Tensor()));  // (B, T, 3C / parts)
                       const Tensor y = team_.has_whole_layers ? attend_by_heads(team_, {&qkv, 1}, 3, attend_part)
                                                               : attend_part(p, {&qkv, 1});
                       return product(*attention_out_.parts[p], y);
                     }));
}

Tensor GptBlock::feed_forward(const Tensor& x) {
  if (sizes_.feed_forward == FeedForward::tiled) {
    const FeedForwardParts parts{*up_.parts[0], nullptr, *down_.parts[0], gpt_detail::fused_gelu(sizes_), compute_};
    return mlp_dropout_(tiled_feed_forward(norm2_(x), parts));
  }
  return drop_tokens(team_, mlp_dropout_,
                     sum_of_parts(norm_tokens(team_, norm2_, x), down_.bias, [&](std::size_t p, Tensor in) {
                       Tensor y = product(*up_.parts[p], std::exchange(in, Tensor()));  // (B, T, 4C / parts)
                       if (sizes_.build == Build::textbook) {
                         const PathScope scope(part_name("mlp.gelu", p));
                         y = gelu(y, gpt_detail::form_of(sizes_));
                       }
                       return product(*down_.parts[p], y);
                     }));
}

Tensor GptBlock::add_parts(const Tensor& x, const Tensor& mask, const nn::CachedLayer* past) {
  const Tensor y = nn::residual_sum(x, attend(x, mask, past));
  return nn::residual_sum(y, feed_forward(y));
}

Tensor GptBlock::forward(const Tensor& x) { return add_parts(x, Tensor(), nullptr); }

Tensor GptBlock::masked(const Tensor& x, const Tensor& mask) {
  const PathScope scope(path());
  return add_parts(x, mask, nullptr);
}

Tensor GptBlock::extend(const Tensor& x, nn::CachedLayer past) {
  const PathScope scope(path());
  return add_parts(x, Tensor(), &past);
}

Gpt::Gpt(const ModelOptions& sizes, const nn::TensorOptions& on) : Decoder(sizes, on.compute) {
  const dist::StagePlace& stage = sizes.stage;
  tokens_ = cut_table("wte", on, gpt_detail::deviation);
  if (stage.is_first()) {
    positions_ = &child<nn::Embedding>("wpe", sizes.sequence, sizes.width, on, gpt_detail::deviation);
    dropout_ = &child<nn::Dropout>("drop", sizes.dropout, sizes.build == Build::textbook);
  }
  const dist::StagePlace::Units own = stage.units(sizes.layers);
  for (std::int64_t i = own.first; i < own.end; ++i) {
    blocks_.push_back(&child<GptBlock>("h." + std::to_string(i), sizes, on));
  }
  if (stage.is_last()) norm_ = &child<nn::LayerNorm>("ln_f", sizes.width, on, gpt_detail::epsilon_of(sizes));
}

Model::SharedByStages Gpt::shared_by_stages() { return shared_parts(tokens_); }

// Ids (B, T) -> (B, T, C).
Tensor Gpt::embed(const Tensor& ids) {
  if (ids.rank() != 2 || ids.size(1) > options_.sequence) {
    throw ShapeError("gpt: ids " + to_string(ids.shape()) + "; (B, T) with T <= " + std::to_string(options_.sequence) +
                     " is allowed");
  }
  const Tensor positions = slice(positions_->weight, 0, 0, ids.size(1));  // (T, C)
  return drop_tokens(options_.team, *dropout_, add_positions(options_.team, look_up(tokens_, ids), positions));
}

// Ids (B, T), or what the stage before gives (B, T, C) -> what the head reads, or the next stage (B, T, C).
Tensor Gpt::features(const Tensor& in, const Tensor& mask) {
  const PathScope scope(path());
  Tensor x = options_.stage.is_first() ? embed(in) : in;
  x = through_blocks(blocks_, std::move(x), recomputes_blocks_,
                     [&](GptBlock& block, const Tensor& of_block) { return block.masked(of_block, mask); });
  return options_.stage.is_last() ? norm_tokens(options_.team, *norm_, std::exchange(x, Tensor())) : x;
}

Tensor Gpt::forward(const Tensor& ids) { return forward(ids, Tensor()); }

Tensor Gpt::forward(const Tensor& ids, const Tensor& mask) {
  if (!options_.stage.is_last()) return features(ids, mask);
  require_whole_vocabulary("gpt");
  return logits(features(ids, mask));
}

// What the head reads (B, T, C) -> (B, T, V of this rank's parts).
Tensor Gpt::logits(const Tensor& x) {
  const PathScope scope(path());
  const PathScope head("head");
  return score(x, [&](std::size_t p) { return tied_weight(tokens_, p); });
}

nn::KvCacheSizes Gpt::cache_sizes() const {
  return {.layers = options_.layers,
          .heads = options_.heads,
          .width = options_.width / options_.heads,
          .dtype = whole_cache_dtype(compute_.value_or(tokens_[0]->weight.dtype()))};
}

Tensor Gpt::extend(const Tensor& ids, nn::KvCache& cache) {
  const std::int64_t first = cache.length(), end = check_extension("gpt", ids, cache);
  const PathScope scope(path());
  Tensor x = add(look_up(tokens_, ids), slice(positions_->weight, 0, first, end));  // (B, T, C)
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->extend(x, {cache, static_cast<std::int64_t>(i)});
  }
  cache.advance(ids.size(1));
  return logits((*norm_)(last_position(x)));
}

Tensor Gpt::loss(const Batch& batch) {
  if (!options_.stage.is_last()) return forward(batch.input, batch.mask);
  if (options_.head == Head::chunked) {
    const Tensor x = features(batch.input, batch.mask);
    const PathScope scope(path());
    const PathScope head("loss");
    return chunked_token_loss(nn::as_operand(x, compute_), nn::as_operand(tied_weight(tokens_, 0), compute_), Tensor(),
                              batch.target);
  }
  const Tensor scores = logits(features(batch.input, batch.mask));
  const PathScope scope(path());
  const PathScope head("loss");
  return loss_of(scores, batch.target);
}

std::vector<std::vector<std::string>> Gpt::names_in_files(const std::string& name) const {
  if (name != "wte.weight") return {};
  return {{"lm_head.weight"}};
}

Batch Gpt::empty_batch(std::int64_t samples, Device device) const {
  return empty_token_batch(options_, samples, device);
}

namespace gpt_detail {

constexpr std::array<TokenSizes, 9> family{{{"gpt2", 12, 12, 768, 1024, 50257, 0.1},
                                            {"gpt2-medium", 24, 16, 1024, 1024, 50257, 0.1},
                                            {"gpt2-large", 36, 20, 1280, 1024, 50257, 0.1},
                                            {"gpt2-xl", 48, 25, 1600, 1024, 50257, 0.1},
                                            {"char-gpt", 6, 6, 384, 256, 65, 0.0},
                                            {"gpt-22b", 48, 64, 6144, 2048, 51200, 0.1},
                                            {"gpt-175b", 96, 96, 12288, 2048, 51200, 0.1},
                                            {"gpt-530b", 105, 128, 20480, 2048, 51200, 0.1},
                                            {"gpt-1t", 128, 160, 25600, 2048, 51200, 0.1}}};

}  // namespace gpt_detail

ModelOptions gpt_options(std::string_view name, const ModelOptions& options) {
  ModelOptions sizes = token_options("gpt", gpt_detail::family, name, options);
  sizes.function =
      complete_function(name, options.function, {.epsilon = gpt_detail::epsilon, .gelu = gpt_detail::gelu_form});
  return sizes;
}

std::unique_ptr<Model> make_gpt(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const auto is_named = [&](const TokenSizes& row) { return row.name == name; };
  if (std::none_of(gpt_detail::family.begin(), gpt_detail::family.end(), is_named)) return nullptr;
  const PathScope scope("gpt");
  return std::make_unique<Gpt>(gpt_options(name, options), on);
}

}  // namespace thimble::models
