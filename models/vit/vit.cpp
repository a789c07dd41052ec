#include <thimble/models/vit/vit.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/random/random.h>
#include <thimble/models/images.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/layers/init.h>

namespace thimble::models {
namespace vit_detail {

constexpr double epsilon = 1e-6, position_deviation = 0.02;

// Glorot & Bengio 2010, equation 16: the uniform's bound for a (out, in) weight.
double glorot_bound(std::int64_t in, std::int64_t out) { return std::sqrt(6.0 / static_cast<double>(in + out)); }

// A dense layer with Glorot's variance, as a normal, and bias 0.
nn::LinearOptions dense(std::int64_t in, std::int64_t out, kernels::Activation activation = {}) {
  nn::LinearOptions options;
  options.deviation = glorot_bound(in, out) / std::sqrt(3.0);
  options.activation = activation;
  return options;
}

constexpr GeluForm gelu_form = GeluForm::erf;

double epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(epsilon); }

kernels::Activation fused_gelu(Build build, GeluForm form) {
  return build == Build::fused ? gelu_activation(form) : kernels::Activation::none;
}

// (N, T, C) -> (N, C), the class token's; a view.
Tensor class_row(const Tensor& x) { return squeeze(slice(x, 1, 0, 1), 1); }

// The head starts from zeros (Dosovitskiy et al. 2020, section 3.2).
nn::LinearOptions zeros_head() {
  nn::LinearOptions options;
  options.deviation = 0;
  return options;
}

}  // namespace vit_detail

VitAttention::VitAttention(const ModelOptions& sizes, const nn::TensorOptions& on)
    : CutBlock(sizes, on), heads_(sizes.heads), build_(sizes.build), in_fp8_(on, sizes.width, 3 * sizes.width) {
  const double bound = vit_detail::glorot_bound(sizes.width, 3 * sizes.width);
  if (is_cut()) {
    nn::LinearOptions in;
    in.bound = bound;
    in_parts_ = cut_outputs("in_proj", sizes.width, 3 * sizes.width, on, in, 3, initial_random_site());
  } else {
    in_weight_ =
        add_parameter("in_proj_weight", nn::init::uniform({3 * sizes.width, sizes.width}, bound, on.dtype, on.device));
    in_bias_ = add_parameter("in_proj_bias", nn::init::constant({3 * sizes.width}, 0, on.dtype, on.device));
  }
  out_ = cut_inputs("out_proj", sizes.width, sizes.width, on, vit_detail::dense(sizes.width, sizes.width));
  if (!in_fp8_.state().defined()) return;
  add_buffer("fp8_amax", in_fp8_.state().amax);
  add_buffer("fp8_scale", in_fp8_.state().scale);
  add_buffer("fp8_steps", in_fp8_.state().steps);
}

Tensor VitAttention::project(const Tensor& x) {  // (N, T, C) -> (N, T, 3C)
  const Tensor in = nn::as_operand(x, compute_), weight = nn::as_operand(in_weight_, compute_),
               bias = nn::as_operand(in_bias_, compute_);
  return in_fp8_.runs() ? in_fp8_(in, weight, bias, is_training()) : linear(in, weight, bias);
}

Tensor VitAttention::forward(const Tensor& x) {  // (N, T, C)
  AttentionOptions options;
  options.causal = false;
  const std::int64_t heads = heads_ / team_.parts;  // of a part
  return sum_of_parts(x, out_.bias, [&](std::size_t p, const Tensor& in) {
    const Tensor qkv = is_cut() ? (*in_parts_.parts[p])(in) : project(in);
    return (*out_.parts[p])(build_ == Build::fused ? attention(qkv, heads, options)
                                                   : attention_textbook(qkv, heads, options));
  });
}

VitBlock::VitBlock(const ModelOptions& sizes, const nn::TensorOptions& on)
    : CutBlock(sizes, on),
      build_(sizes.build),
      feed_forward_(sizes.feed_forward),
      gelu_(sizes.function.gelu.value_or(vit_detail::gelu_form)),
      norm1_(child<nn::LayerNorm>("ln_1", sizes.width, on, vit_detail::epsilon_of(sizes))),
      attention_(child<VitAttention>("self_attention", sizes, on)),
      attention_dropout_(child<nn::Dropout>("dropout", sizes.dropout, sizes.build == Build::textbook)),
      norm2_(child<nn::LayerNorm>("ln_2", sizes.width, on, vit_detail::epsilon_of(sizes))),
      up_(cut_outputs("mlp.0", sizes.width, 4 * sizes.width, on,
                      vit_detail::dense(sizes.width, 4 * sizes.width, vit_detail::fused_gelu(sizes.build, gelu_)))),
      gelu_dropouts_(cut_dropout("mlp.2", sizes.dropout, sizes.build == Build::textbook)),
      down_(cut_inputs("mlp.3", 4 * sizes.width, sizes.width, on, vit_detail::dense(4 * sizes.width, sizes.width))),
      mlp_dropout_(child<nn::Dropout>("mlp.4", sizes.dropout, sizes.build == Build::textbook)) {}

Tensor VitBlock::feed_forward(const Tensor& x) {
  if (feed_forward_ == FeedForward::tiled) {
    return mlp_dropout_(tiled_feed_forward(
        norm2_(x), {*up_.parts[0], nullptr, *down_.parts[0], vit_detail::fused_gelu(build_, gelu_), compute_}));
  }
  return mlp_dropout_(sum_of_parts(norm2_(x), down_.bias, [&](std::size_t p, Tensor in) {
    Tensor y = (*up_.parts[p])(std::exchange(in, Tensor()));  // (N, T, 4C / parts)
    if (build_ == Build::textbook) {
      const PathScope scope(part_name("mlp.1", p));
      y = gelu(y, gelu_);
    }
    return (*down_.parts[p])((*gelu_dropouts_[p])(y));
  }));
}

Tensor VitBlock::forward(const Tensor& x) {
  const Tensor y = nn::residual_sum(x, attention_dropout_(attention_(norm1_(x))));
  return nn::residual_sum(y, feed_forward(y));
}

Vit::Vit(const ModelOptions& sizes, const nn::TensorOptions& on) : Model(sizes), dtype_(on.dtype) {
  if (sizes.stage.is_first()) {
    class_token_ = add_parameter("class_token", nn::init::constant({1, 1, sizes.width}, 0, on.dtype, on.device));
    patches_ = &child<nn::Conv2d>("conv_proj", sizes.channels, sizes.width, vit_patch,
                                  Conv2dOptions{.stride = vit_patch}, true, on.outside_blocks());
    positions_ =
        add_parameter("encoder.pos_embedding", nn::init::normal({1, vit_tokens(sizes.image), sizes.width},
                                                                vit_detail::position_deviation, on.dtype, on.device));
    dropout_ = &child<nn::Dropout>("encoder.dropout", sizes.dropout, sizes.build == Build::textbook);
    const auto patch_elements = static_cast<double>(vit_patch * vit_patch * sizes.channels);
    fill_normal(patches_->weight, 0, 1 / std::sqrt(patch_elements),
                initial_random_site());  // as a dense layer's over a patch
  }
  const dist::StagePlace::Units own = sizes.stage.units(sizes.layers);
  for (std::int64_t i = own.first; i < own.end; ++i) {
    blocks_.push_back(&child<VitBlock>("encoder.layers.encoder_layer_" + std::to_string(i), sizes, on));
  }
  if (!sizes.stage.is_last()) return;
  norm_ = &child<nn::LayerNorm>("encoder.ln", sizes.width, on, vit_detail::epsilon_of(sizes));
  head_ = &child<nn::Linear>("heads.head", sizes.width, sizes.classes, on.outside_blocks(), vit_detail::zeros_head());
}

// Images (N, H, W, C) -> (N, T, C).
Tensor Vit::embed(const Tensor& images) {
  if (images.rank() != 4 || images.size(1) != options_.image || images.size(2) != options_.image) {
    throw ShapeError("vit: images " + to_string(images.shape()) + "; (N, " + std::to_string(options_.image) + ", " +
                     std::to_string(options_.image) + ", C) is allowed");
  }
  const Tensor grid = cast((*patches_)(images), dtype_);                     // (N, H / 16, W / 16, C)
  const Tensor patches = reshape(grid, {grid.size(0), -1, options_.width});  // (N, T - 1, C)
  const PathScope scope("encoder");
  const Tensor first = expand(class_token_, {images.size(0), 1, options_.width});  // (N, 1, C)
  return (*dropout_)(add(concat({first, patches}, 1), positions_));                // (N, T, C)
}

Tensor Vit::forward(const Tensor& in) {
  const PathScope scope(path());
  const Tensor x = through_blocks(blocks_, options_.stage.is_first() ? embed(in) : in, recomputes_blocks_,
                                  [](auto& block, const Tensor& of_block) { return block(of_block); });  // (N, T, C)
  if (!options_.stage.is_last()) return x;
  if (options_.build == Build::textbook) return (*head_)(vit_detail::class_row((*norm_)(x)));
  const Tensor rows = concat({vit_detail::class_row(x)}, 0);  // (N, C), a copy: nothing holds the other tokens
  return (*head_)((*norm_)(rows));
}

std::vector<std::vector<std::string>> Vit::names_in_files(const std::string& name) const {
  constexpr std::pair<std::string_view, std::string_view> outside[] = {
      {"class_token", "vit.embeddings.cls_token"},
      {"encoder.pos_embedding", "vit.embeddings.position_embeddings"},
      {"conv_proj.", "vit.embeddings.patch_embeddings.projection."},
      {"encoder.ln.", "vit.layernorm."},
      {"heads.head.", "classifier."}};
  for (const auto& [own, other] : outside) {
    if (name.starts_with(own)) return {{std::string(other) + name.substr(own.size())}};
  }
  constexpr std::string_view layers = "encoder.layers.encoder_layer_";
  if (!name.starts_with(layers)) return {};
  const std::size_t dot = name.find('.', layers.size());
  const std::string layer = "vit.encoder.layer." + name.substr(layers.size(), dot - layers.size()) + ".";
  const std::string_view rest = std::string_view(name).substr(dot + 1);
  constexpr std::string_view in_projection = "self_attention.in_proj_";
  if (rest.starts_with(in_projection)) {
    std::vector<std::string> three;
    for (const char* const each : {"query.", "key.", "value."}) {
      three.push_back(layer + "attention.attention." + each + std::string(rest.substr(in_projection.size())));
    }
    return {three};
  }
  constexpr std::pair<std::string_view, std::string_view> inside[] = {
      {"ln_1.", "layernorm_before."},
      {"self_attention.out_proj.", "attention.output.dense."},
      {"ln_2.", "layernorm_after."},
      {"mlp.0.", "intermediate.dense."},
      {"mlp.3.", "output.dense."}};
  for (const auto& [own, other] : inside) {
    if (rest.starts_with(own)) return {{layer + std::string(other) + std::string(rest.substr(own.size()))}};
  }
  return {};
}

Batch Vit::empty_batch(std::int64_t samples, Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

namespace vit_detail {

struct Sizes {
  std::string_view name;
  std::int64_t layers, heads, width;
};
constexpr std::array<Sizes, 2> family{{{"vit-b16", 12, 12, 768}, {"vit-l16", 24, 16, 1024}}};

const Sizes* find(std::string_view name) {
  const auto found = std::find_if(family.begin(), family.end(), [&](const Sizes& row) { return row.name == name; });
  return found == family.end() ? nullptr : &*found;
}

}  // namespace vit_detail

ModelOptions vit_options(std::string_view name, const ModelOptions& options) {
  const vit_detail::Sizes* const own = vit_detail::find(name);
  if (!own) throw ValueError("vit: no model is named '" + std::string(name) + "'; there are vit-b16, vit-l16");
  ModelOptions of_images = options;
  of_images.heads = 0, of_images.dropout = -1, of_images.feed_forward = {};  // options of vision transformers, too
  require_image_options(name, of_images, vit_patch);
  ModelOptions sizes = options;
  const auto fill_in = [](std::int64_t& size, std::int64_t value) { size = size > 0 ? size : value; };
  fill_in(sizes.image, 224);
  fill_in(sizes.channels, 3);
  fill_in(sizes.classes, sizes.image <= 64 ? 10 : 1000);
  fill_in(sizes.layers, own->layers);
  fill_in(sizes.heads, own->heads);
  fill_in(sizes.width, own->width);
  sizes.vocabulary = sizes.sequence = 0;  // it has none
  if (sizes.dropout < 0) sizes.dropout = 0;
  sizes.function =
      complete_function(name, options.function, {.epsilon = vit_detail::epsilon, .gelu = vit_detail::gelu_form});
  require_transformer_sizes(name, sizes);
  if (sizes.feed_forward == FeedForward::tiled && sizes.dropout > 0) {
    throw ValueError(std::string(name) + ": feed-forward layers in tiles have no dropout inside, and `dropout` is " +
                     std::to_string(sizes.dropout) + "; 0, or `feed_forward` full, is allowed");
  }
  if (sizes.image % vit_patch != 0) {
    throw ValueError(std::string(name) + ": image " + std::to_string(sizes.image) + ": multiples of " +
                     std::to_string(vit_patch) + " pixels are allowed");
  }
  return sizes;
}

std::unique_ptr<Model> make_vit(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  if (!vit_detail::find(name)) return nullptr;
  const PathScope scope("vit");
  return std::make_unique<Vit>(vit_options(name, options), on);
}

}  // namespace thimble::models
