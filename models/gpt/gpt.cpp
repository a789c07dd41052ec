#include <thimble/models/gpt/gpt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/random/philox.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/core/tensor/view.h>
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

kernels::Activation fused_gelu(const ModelOptions& sizes) {
  return sizes.build == Build::fused ? kernels::Activation::gelu_tanh : kernels::Activation::none;
}

}  // namespace gpt_detail

GptBlock::GptBlock(const ModelOptions& sizes, const nn::TensorOptions& on)
    : sizes_(sizes),
      norm1_(child<nn::LayerNorm>("ln_1", sizes.width, on)),
      qkv_(child<nn::Linear>("attn.c_attn", sizes.width, 3 * sizes.width, on,
                             gpt_detail::projection(gpt_detail::deviation))),
      attention_out_(child<nn::Linear>("attn.c_proj", sizes.width, sizes.width, on,
                                       gpt_detail::projection(gpt_detail::residual_deviation(sizes)))),
      norm2_(child<nn::LayerNorm>("ln_2", sizes.width, on)),
      up_(child<nn::Linear>("mlp.c_fc", sizes.width, 4 * sizes.width, on,
                            gpt_detail::projection(gpt_detail::deviation, gpt_detail::fused_gelu(sizes)))),
      down_(child<nn::Linear>("mlp.c_proj", 4 * sizes.width, sizes.width, on,
                              gpt_detail::projection(gpt_detail::residual_deviation(sizes)))),
      attention_dropout_(child<nn::Dropout>("attn.dropout", sizes.dropout, sizes.build == Build::textbook)),
      mlp_dropout_(child<nn::Dropout>("mlp.dropout", sizes.dropout, sizes.build == Build::textbook)) {}

Tensor GptBlock::attend(const Tensor& x) {  // (B, T, C)
  const Tensor qkv = qkv_(norm1_(x));       // (B, T, 3C)
  AttentionOptions options;
  options.causal = true;
  options.dropout = is_training() ? sizes_.dropout : 0;
  const PathScope scope("attn");
  const Tensor y = sizes_.build == Build::fused ? attention(qkv, sizes_.heads, options)
                                                : attention_textbook(qkv, sizes_.heads, options);
  return attention_dropout_(attention_out_(y));
}

Tensor GptBlock::feed_forward(const Tensor& x) {
  Tensor y = up_(norm2_(x));  // (B, T, 4C)
  if (sizes_.build == Build::textbook) {
    const PathScope scope("mlp.gelu");
    y = gelu(y);
  }
  return mlp_dropout_(down_(y));
}

Tensor GptBlock::forward(const Tensor& x) {
  const Tensor y = nn::residual_sum(x, attend(x));
  return nn::residual_sum(y, feed_forward(y));
}

Gpt::Gpt(const ModelOptions& sizes, const nn::TensorOptions& on)
    : Model(sizes),
      compute_(on.compute),
      tokens_(child<nn::Embedding>("wte", sizes.vocabulary, sizes.width, on, gpt_detail::deviation)),
      positions_(child<nn::Embedding>("wpe", sizes.sequence, sizes.width, on, gpt_detail::deviation)),
      dropout_(child<nn::Dropout>("drop", sizes.dropout, sizes.build == Build::textbook)),
      norm_([&]() -> nn::LayerNorm& {
        for (std::int64_t i = 0; i < sizes.layers; ++i) {
          blocks_.push_back(&child<GptBlock>("h." + std::to_string(i), sizes, on));
        }
        return child<nn::LayerNorm>("ln_f", sizes.width, on);
      }()) {}

// Ids (B, T) -> what the head reads (B, T, C).
Tensor Gpt::features(const Tensor& ids) {
  if (ids.rank() != 2 || ids.size(1) > options_.sequence) {
    throw ShapeError("gpt: ids " + to_string(ids.shape()) + "; (B, T) with T <= " + std::to_string(options_.sequence) +
                     " is allowed");
  }
  const PathScope scope(path());
  const Tensor positions = slice(positions_.weight, 0, 0, ids.size(1));  // (T, C)
  Tensor x = dropout_(add(tokens_(ids), positions));                     // (B, T, C)
  return norm_(through_blocks(blocks_, std::move(x), recomputes_blocks_));
}

Tensor Gpt::forward(const Tensor& ids) {
  const Tensor x = features(ids);
  const PathScope scope(path());
  const PathScope head("head");
  return linear(nn::as_operand(x, compute_), nn::as_operand(tokens_.weight, compute_));  // (B, T, V)
}

Tensor Gpt::loss(const Batch& batch) {
  if (options_.head == Head::chunked) {
    const Tensor x = features(batch.input);
    const PathScope scope(path());
    const PathScope head("loss");
    return chunked_token_loss(nn::as_operand(x, compute_), nn::as_operand(tokens_.weight, compute_), Tensor(),
                              batch.target);
  }
  const Tensor logits = forward(batch.input);
  const PathScope scope(path());
  const PathScope head("loss");
  return token_loss(logits, batch.target, options_.build);
}

Batch Gpt::empty_batch(std::int64_t samples, Device device) const {
  return empty_token_batch(options_, samples, device);
}

namespace gpt_detail {

constexpr std::array<TokenSizes, 5> family{{{"gpt2", 12, 12, 768, 1024, 50257, 0.1},
                                            {"gpt2-medium", 24, 16, 1024, 1024, 50257, 0.1},
                                            {"gpt2-large", 36, 20, 1280, 1024, 50257, 0.1},
                                            {"gpt2-xl", 48, 25, 1600, 1024, 50257, 0.1},
                                            {"char-gpt", 6, 6, 384, 256, 65, 0.0}}};

}  // namespace gpt_detail

ModelOptions gpt_options(std::string_view name, const ModelOptions& options) {
  return token_options("gpt", gpt_detail::family, name, options);
}

std::unique_ptr<Model> make_gpt(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  const auto is_named = [&](const TokenSizes& row) { return row.name == name; };
  if (std::none_of(gpt_detail::family.begin(), gpt_detail::family.end(), is_named)) return nullptr;
  const PathScope scope("gpt");
  return std::make_unique<Gpt>(gpt_options(name, options), on);
}

namespace gpt_detail {

// One draw from the softmax of `logits` over the top_k largest.
std::int64_t draw(const std::vector<float>& logits, double temperature, std::int64_t top_k, double uniform) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  if (temperature == 0) return order[0];
  if (top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(top_k)));
  std::vector<double> weights;
  const double most = logits[static_cast<std::size_t>(order[0])];
  for (const std::int64_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - most) / temperature));
  }
  double rest = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order.back();
}

}  // namespace gpt_detail

std::vector<std::int64_t> generate(Model& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   double temperature, std::int64_t top_k, std::uint64_t seed) {
  if (!model.is_text() || model.is_masked())
    throw ValueError("generate: the model does not give the tokens that come next");
  if (prompt.empty()) throw ValueError("generate: the prompt has no tokens; at least one is needed");
  if (!(temperature >= 0) || count < 0 || top_k < 0) {
    throw ValueError("generate: temperature " + std::to_string(temperature) + ", count " + std::to_string(count) +
                     ", top_k " + std::to_string(top_k) + "; each must be at least 0");
  }
  const NoGrad off;
  const bool was_training = model.is_training();
  model.eval();
  const Device device = model.parameters().front().tensor.device();
  std::vector<std::int64_t> tokens = std::move(prompt);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto window = std::min(static_cast<std::int64_t>(tokens.size()), model.options().sequence);
    const std::vector<std::int64_t> last(tokens.end() - window, tokens.end());
    const Tensor logits = model.forward(from_host(last, {1, window}, device, Category::input));  // (1, window, V)
    const Tensor scores = contiguous(to_dtype(view::slice(logits, 1, window - 1, window), DType::f32));  // (1, 1, V)
    if (device.is_dry) {
      tokens.push_back(0);
      continue;
    }
    const PhiloxBlock bits = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0x67656e65u}},
                                        {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
    tokens.push_back(
        gpt_detail::draw(to_host<float>(scores), temperature, top_k, uniform_double(bits.word[0], bits.word[1])));
  }
  model.train(was_training);
  return tokens;
}

}  // namespace thimble::models
