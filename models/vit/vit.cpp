#include <thimble/models/vit/vit.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/random.h>
#include <thimble/models/images.h>
#include <thimble/models/transformer/branch.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/nn/layers/init.h>

namespace thimble::models {
namespace {

constexpr double vit_epsilon = 1e-6, position_deviation = 0.02;

// Glorot & Bengio 2010, equation 16: the uniform's bound for a (out, in) weight.
double glorot_bound(std::int64_t in, std::int64_t out) { return std::sqrt(6.0 / static_cast<double>(in + out)); }

// A dense layer with Glorot's variance, as a normal, and bias 0.
nn::LinearOptions dense(std::int64_t in, std::int64_t out) {
  nn::LinearOptions options;
  options.deviation = glorot_bound(in, out) / std::sqrt(3.0);
  return options;
}

constexpr GeluForm vit_gelu = GeluForm::erf;

double vit_epsilon_of(const ModelOptions& sizes) { return sizes.function.epsilon.value_or(vit_epsilon); }

// How a group shards the model.
const nn::ShardedChild vit_shards[] = {{"self_attention.in_proj", nn::Sharding::column, 3},
                                       {"self_attention.out_proj", nn::Sharding::row},
                                       {"mlp.0", nn::Sharding::column},
                                       {"mlp.2", nn::Sharding::element},
                                       {"mlp.3", nn::Sharding::row}};

// For a weight that is never coded: QLoRA codes only layers with adapters.
nn::TensorOptions plain_weight(const nn::TensorOptions& on) {
  nn::TensorOptions plain = on;
  plain.coded_weights.reset();
  return plain;
}

// (N, T, C) -> (N, C), a view of the class token's rows.
Tensor class_row(const Tensor& x) { return squeeze(slice(x, 1, 0, 1), 1); }

// The head starts from zeros (Dosovitskiy et al. 2020, section 3.2).
nn::LinearOptions zeros_head() {
  nn::LinearOptions options;
  options.deviation = 0;
  return options;
}

}  // namespace

/// Query, key and value from one product, whose parameters torch.nn.MultiheadAttention names "in_proj_weight" (3 C, C)
/// and "in_proj_bias" (3 C).
class VitAttention final : public Branch {
 public:
  VitAttention(const ModelOptions& sizes, const nn::TensorOptions& on)
      : Branch(on),
        in_proj_(own_child<nn::Linear>(
            sizes.width, 3 * sizes.width, plain_weight(on),
            nn::LinearOptions{.bound = glorot_bound(sizes.width, 3 * sizes.width), .prefix = "in_proj_"})),
        attend_(child<SelfAttention>(
            "heads",
            SelfAttentionOptions{.head_width = sizes.width / sizes.heads, .is_causal = false, .build = sizes.build})),
        out_proj_(child<nn::Linear>("out_proj", sizes.width, sizes.width, on, dense(sizes.width, sizes.width))) {}

 protected:
  Tensor forward(Tensor x, const AttentionInputs& with) override {  // (N, T, C)
    return out_proj_(attend_(in_proj_(x), with));
  }

 private:
  nn::Linear& in_proj_;
  SelfAttention& attend_;
  nn::Linear& out_proj_;
};

class VitBlock final : public nn::Module {
 public:
  VitBlock(const ModelOptions& sizes, const nn::TensorOptions& on)
      : norm1_(child<nn::LayerNorm>("ln_1", sizes.width, on, vit_epsilon_of(sizes))),
        attention_(child<VitAttention>("self_attention", sizes, on)),
        attention_dropout_(child<nn::Dropout>("dropout", sizes.dropout, sizes.build == Build::textbook)),
        norm2_(child<nn::LayerNorm>("ln_2", sizes.width, on, vit_epsilon_of(sizes))),
        mlp_(child<GeluMlp>("mlp", sizes, on,
                            MlpOptions{.up = "0",
                                       .down = "3",
                                       .gelu = "1",
                                       .dropout = "2",
                                       .of_up = dense(sizes.width, 4 * sizes.width),
                                       .of_down = dense(4 * sizes.width, sizes.width),
                                       .form = sizes.function.gelu.value_or(vit_gelu)})),
        mlp_dropout_(child<nn::Dropout>("mlp.4", sizes.dropout, sizes.build == Build::textbook)) {}

  Tensor operator()(const Tensor& x) {  // (N, T, C)
    const PathScope scope(path());
    const Tensor y = nn::residual_sum(x, attention_dropout_(attention_(norm1_(x))));
    return nn::residual_sum(y, mlp_dropout_(mlp_(norm2_(y))));
  }

 private:
  nn::LayerNorm& norm1_;
  VitAttention& attention_;
  nn::Dropout& attention_dropout_;
  nn::LayerNorm& norm2_;
  GeluMlp& mlp_;
  nn::Dropout& mlp_dropout_;
};

Vit::Vit(const ModelOptions& sizes, const nn::TensorOptions& on) : Model(sizes), dtype_(on.dtype) {
  if (sizes.stage.is_first()) {
    class_token_ = add_parameter("class_token", nn::init::constant({1, 1, sizes.width}, 0, on.dtype, on.device));
    patches_ = &child<nn::Conv2d>("conv_proj", sizes.channels, sizes.width, vit_patch,
                                  Conv2dOptions{.stride = vit_patch}, true, on.outside_blocks());
    positions_ = add_parameter("encoder.pos_embedding", nn::init::normal({1, vit_tokens(sizes.image), sizes.width},
                                                                         position_deviation, on.dtype, on.device));
    dropout_ = &child<nn::Dropout>("encoder.dropout", sizes.dropout, sizes.build == Build::textbook);
    const auto patch_elements = static_cast<double>(vit_patch * vit_patch * sizes.channels);
    fill_normal(patches_->weight, 0, 1 / std::sqrt(patch_elements),
                initial_random_site());  // like a dense layer over a patch
  }
  const dist::StagePlace::Units own = sizes.stage.units(sizes.layers);
  for (std::int64_t i = own.first; i < own.end; ++i) {
    blocks_.push_back(&child<VitBlock>("encoder.layers.encoder_layer_" + std::to_string(i), sizes, on));
  }
  if (!sizes.stage.is_last()) return;
  norm_ = &child<nn::LayerNorm>("encoder.ln", sizes.width, on, vit_epsilon_of(sizes));
  head_ = &child<nn::Linear>("heads.head", sizes.width, sizes.classes, on.outside_blocks(), zeros_head());
}

// Images (N, H, W, C) -> (N, T, C).
Tensor Vit::embed(const Tensor& images) {
  if (images.rank() != 4 || images.size(1) != options_.image || images.size(2) != options_.image) {
    throw ShapeError("vit: images " + to_string(images.shape()) + "; expected (N, " + std::to_string(options_.image) +
                     ", " + std::to_string(options_.image) + ", C)");
  }
  const Tensor grid = cast((*patches_)(images), dtype_);                     // (N, H / 16, W / 16, C)
  const Tensor patches = reshape(grid, {grid.size(0), -1, options_.width});  // (N, T - 1, C)
  const PathScope scope("encoder");
  const Tensor first = expand(class_token_, {images.size(0), 1, options_.width});  // (N, 1, C)
  return (*dropout_)(add(concat({first, patches}, 1), positions_));                // (N, T, C)
}

Tensor Vit::forward(const Tensor& in) {
  const PathScope scope(path());
  const Tensor x = through_blocks(blocks_, patches_ != nullptr ? embed(in) : in, recomputes_blocks_,
                                  [](auto& block, const Tensor& of_block) { return block(of_block); });  // (N, T, C)
  if (head_ == nullptr) return x;  // another stage has it
  if (options_.build == Build::textbook) return (*head_)(class_row((*norm_)(x)));
  const Tensor rows = concat({class_row(x)}, 0);  // (N, C), a copy, which does not hold the other tokens
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

Batch Vit::empty_batch(std::int64_t samples, memory::Device device) const {
  return empty_image_batch(options_, samples, dtype_, device);
}

namespace {

struct Sizes {
  std::string_view name;
  std::int64_t layers, heads, width;
};
constexpr std::array<Sizes, 2> vit_family{{{"vit-b16", 12, 12, 768}, {"vit-l16", 24, 16, 1024}}};

const Sizes* find(std::string_view name) {
  const auto found =
      std::find_if(vit_family.begin(), vit_family.end(), [&](const Sizes& row) { return row.name == name; });
  return found == vit_family.end() ? nullptr : &*found;
}

}  // namespace

ModelOptions vit_options(std::string_view name, const ModelOptions& options) {
  const Sizes* const own = find(name);
  if (!own) throw ValueError("vit: no model is named '" + std::string(name) + "'; there are vit-b16, vit-l16");
  ModelOptions of_images = options;
  of_images.heads = 0, of_images.dropout = -1, of_images.feed_forward = {};  // a vision transformer has these
  require_image_options(name, of_images, vit_patch);
  ModelOptions sizes = options;
  const auto fill_in = [](std::int64_t& size, std::int64_t value) { size = size > 0 ? size : value; };
  fill_in(sizes.image, 224);
  fill_in(sizes.channels, 3);
  fill_in(sizes.classes, sizes.image <= 64 ? 10 : 1000);
  fill_in(sizes.layers, own->layers);
  fill_in(sizes.heads, own->heads);
  fill_in(sizes.width, own->width);
  sizes.vocabulary = sizes.sequence = 0;  // of other models
  if (sizes.dropout < 0) sizes.dropout = 0;
  sizes.function = complete_function(name, options.function, {.epsilon = vit_epsilon, .gelu = vit_gelu});
  require_transformer_sizes(name, sizes);
  if (sizes.feed_forward == FeedForward::tiled && sizes.dropout > 0) {
    throw ValueError(std::string(name) + ": feed-forward layers in tiles have no dropout inside, and `dropout` is " +
                     std::to_string(sizes.dropout) + "; expected 0, or `feed_forward` full");
  }
  if (sizes.image % vit_patch != 0) {
    throw ValueError(std::string(name) + ": image " + std::to_string(sizes.image) + "; expected a multiple of " +
                     std::to_string(vit_patch) + " pixels");
  }
  return sizes;
}

std::unique_ptr<Model> make_vit(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on) {
  if (!find(name)) return nullptr;
  const PathScope scope("vit");
  return make_sharded<Vit>(vit_options(name, options), on, vit_shards);
}

}  // namespace thimble::models
