#include <thimble/models/transformer/transformer.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/loss.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/matmul/chunked.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/units.h>

namespace thimble::models {

void require_transformer_sizes(std::string_view name, const ModelOptions& sizes) {
  if (!(sizes.dropout >= 0 && sizes.dropout < 1)) {
    throw ValueError(std::string(name) + ": dropout " + std::to_string(sizes.dropout) + " is not in [0, 1)");
  }
  if (sizes.width % sizes.heads != 0) {
    throw ValueError(std::string(name) + ": " + std::to_string(sizes.heads) + " heads do not divide width " +
                     std::to_string(sizes.width));
  }
  if (sizes.key_heads > 0 && sizes.heads % sizes.key_heads != 0) {
    throw ValueError(std::string(name) + ": " + std::to_string(sizes.key_heads) +
                     " heads of keys and values do not divide " + std::to_string(sizes.heads) + " heads");
  }
  if (sizes.window < 0 || (sizes.window > 0 && sizes.build == Build::textbook)) {
    throw ValueError(std::string(name) + ": window " + std::to_string(sizes.window) +
                     (sizes.window < 0 ? "; expected at least 1, or 0 for none" : "; the textbook build has none"));
  }
  if (sizes.feed_forward == FeedForward::tiled && sizes.build == Build::textbook) {
    throw ValueError(std::string(name) + ": the textbook build has only full feed-forward layers");
  }
}

ModelOptions token_options(std::string_view kind, std::span<const TokenSizes> family, std::string_view name,
                           ModelOptions options) {
  const auto own = std::find_if(family.begin(), family.end(), [&](const TokenSizes& row) { return row.name == name; });
  if (own == family.end()) {
    std::string names;
    for (const TokenSizes& row : family) names += (names.empty() ? "" : ", ") + std::string(row.name);
    throw ValueError(std::string(kind) + ": no model is named '" + std::string(name) + "'; there are " + names);
  }
  const auto refuse = [&](const char* option, std::int64_t value, const char* models) {
    if (value <= 0) return;
    throw ValueError(std::string(name) + ": " + option + " " + std::to_string(value) +
                     ": not an option of this model, but of " + models);
  };
  if (!options.shares_kernels) {
    throw ValueError(
        std::string(name) +
        ": `shares_kernels` off: it has no convolutions that share kernels, so there is nothing to turn off");
  }
  if (options.head == Head::chunked && options.build == Build::textbook) {
    throw ValueError(std::string(name) + ": the textbook build has only the full head");
  }
  refuse("`image`", options.image, "models over images");
  refuse("channels", options.channels, "models over images");
  refuse("classes", options.classes, "models over images");
  if (own->key_heads == 0) refuse("`key_heads`", options.key_heads, models_with_key_heads);
  if (own->hidden == 0) refuse("`hidden`", options.hidden, models_with_key_heads);
  const auto fill_in = [](std::int64_t& size, std::int64_t value) { size = size > 0 ? size : value; };
  const auto in_proportion = [](std::int64_t size, std::int64_t to, std::int64_t of) {
    return to > 0 ? std::max<std::int64_t>(1, size * to / of) : size;
  };
  if (own->key_heads > 0) fill_in(options.key_heads, in_proportion(own->key_heads, options.heads, own->heads));
  if (own->hidden > 0) fill_in(options.hidden, round_up(in_proportion(own->hidden, options.width, own->width), 16));
  fill_in(options.layers, own->layers);
  fill_in(options.heads, own->heads);
  fill_in(options.width, own->width);
  fill_in(options.sequence, own->sequence);
  fill_in(options.vocabulary, own->vocabulary);
  if (options.dropout < 0) options.dropout = own->dropout;
  require_transformer_sizes(name, options);
  return options;
}

ModelFunction complete_function(std::string_view name, const ModelFunction& function, const ModelFunction& own) {
  require_function(name, function, own);
  const auto require_positive = [&](const char* value_name, double value) {
    if (std::isfinite(value) && value > 0) return;
    throw ValueError(std::string(name) + ": `function." + value_name + "`: expected a finite number above 0, got " +
                     format_real(value));
  };
  ModelFunction all = with_function(own, function);
  if (all.epsilon) require_positive("epsilon", *all.epsilon);
  if (all.rotary) require_positive("rotary.theta", all.rotary->theta);
  return all;
}

Tensor token_loss(const Tensor& logits, const Tensor& targets, Build build) {
  const Tensor rows = reshape(logits, {-1, logits.size(-1)});  // (B T, V)
  const Tensor classes = view::reshape(contiguous(targets), {-1});
  return build == Build::fused ? cross_entropy(rows, classes) : cross_entropy_textbook(rows, classes);
}

Tensor chunked_token_loss(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& targets) {
  const Tensor rows = reshape(x, {-1, x.size(-1)});  // (B T, C)
  return linear_cross_entropy(rows, weight, view::reshape(contiguous(targets), {-1}), {}, bias);
}

Tensor tiled_feed_forward(const Tensor& x, const FeedForwardParts& parts) {
  for (const nn::Linear* layer : {&parts.up, parts.gate, &parts.down}) {
    if (layer == nullptr) continue;
    const nn::Layer* const other = layer->replacement();
    if (other == nullptr || other->difference().empty()) continue;
    throw ValueError("feed-forward layer in tiles: expected plain linear layers, got " +
                     std::string(path_name(layer->path())) + ", which " + std::string(other->difference()) +
                     "; `feed_forward` full, or `lora_targets` outside of feed-forward layers, runs it");
  }
  const auto operand = [&](const Tensor& t) { return nn::as_operand(t, parts.compute); };
  const ops::TiledFeedForward op{parts.activation, parts.up.weight_is_in_out()};
  const Tensor in = operand(x), up = operand(parts.up.weight), up_bias = operand(parts.up.bias);
  const Tensor gate = parts.gate != nullptr ? operand(parts.gate->weight) : Tensor();
  return apply(op, in, up, up_bias, gate, operand(parts.down.weight), operand(parts.down.bias));
}

Batch empty_token_batch(const ModelOptions& options, std::int64_t samples, memory::Device device) {
  if (samples < 1) throw ValueError("empty_batch: " + std::to_string(samples) + " samples; at least 1");
  const Shape shape{samples, options.sequence};
  return {zeros(shape, DType::i64, device, memory::Category::input),
          zeros(shape, DType::i64, device, memory::Category::input)};
}

}  // namespace thimble::models
