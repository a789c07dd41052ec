#pragma once
// Vision transformers (Dosovitskiy et al. 2020, arXiv:2010.11929): a class token and 16x16 patches of an image pass
// through a pre-norm encoder, and the class token's result is classified. Parameters have torchvision's names and
// layouts: `class_token` (1, 1, C), `conv_proj.weight` (C, 3, 16, 16), `encoder.pos_embedding` (1, T, C),
// `encoder.layers.encoder_layer_0.self_attention.in_proj_weight` (3 C, C) [out, in], ..., `heads.head.weight`.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/models/theory.h>
#include <thimble/nn/files/public_names.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// Height and width of a patch in pixels.
inline constexpr std::int64_t vit_patch = 16;

/// Tokens of an image: its patches and the class token.
constexpr std::int64_t vit_tokens(std::int64_t image) noexcept { return (image / vit_patch) * (image / vit_patch) + 1; }

class VitBlock;

/// Images (N, H, W, C) -> class scores (N, K).
///
/// textbook: gelu and the steps of attention are separate operators, and the last norm runs over all tokens. fused: the
/// last norm runs only over the class token, so the other tokens' results are not kept.
class Vit final : public Model, public nn::PublicNames {
 public:
  Vit(const ModelOptions& sizes, const nn::TensorOptions& on);

  /// Throws ShapeError unless the images have options().image pixels on each side.
  Tensor forward(const Tensor& images) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override { return false; }
  std::string_view hidden_layers() const noexcept override { return "encoder.layers."; }
  bool has_stages() const noexcept override { return true; }
  void recompute_blocks(bool is_on = true) override { recomputes_blocks_ = is_on; }
  /// Names of transformers' ViTForImageClassification, with separate queries, keys and values.
  std::vector<std::vector<std::string>> names_in_files(const std::string& name) const override;
  std::vector<std::string> passed_over() const override { return {"pooler.dense.weight", "pooler.dense.bias"}; }

 private:
  Tensor embed(const Tensor& images);

  DType dtype_;
  // On the first stage.
  nn::Parameter class_token_;  // (1, 1, C)
  nn::Conv2d* patches_ = nullptr;
  nn::Parameter positions_;  // (1, T, C)
  nn::Dropout* dropout_ = nullptr;
  std::vector<VitBlock*> blocks_;
  // On the last stage.
  nn::LayerNorm* norm_ = nullptr;
  nn::Linear* head_ = nullptr;
  bool recomputes_blocks_ = false;
};

/// The complete sizes of a named model of the family (see make_vit), with `options` replacing some. Defaults: image
/// 224, channels 3, classes 1000 (10 for images of at most 64 pixels), no dropout. Throws ValueError: another name, an
/// image that 16 does not divide, heads that do not divide the width, dropout outside [0, 1), dropout with tiled
/// feed-forward layers, an option of models over text.
ModelOptions vit_options(std::string_view name, const ModelOptions& options = {});

/// `vit-b16` (12 layers, width 768, 12 heads) or `vit-l16` (24, 1024, 16) with `options` replacing sizes; null for
/// another name. Dropout is where the paper has it: after adding positions, and after every dense layer except the
/// query, key and value projections; never on attention's probabilities. Throws ValueError as vit_options does.
std::unique_ptr<Model> make_vit(std::string_view name, const ModelOptions& options, const nn::TensorOptions& on);

/// Its memory in closed form (models/theory.h), in both builds and under every policy. Parameters for c channels and K
/// classes: 256 c h + h + h + s h + L (12 h^2 + 13 h) + 2 h + (h + 1) K, of patches, class token, positions, layers,
/// final norm and head. Layers are pre-norm over s = (image / 16)^2 + 1 tokens (models/transformer/theory.h); the fused
/// build does not keep the last "layer output". Outside: "images" and "targets" (input), "embedding output", "final
/// norm statistics", "head input" (textbook: the final norm's result for all tokens; fused: for the class tokens, and
/// "class rows", the norm's input), "logits", "logsumexp"; textbook, with dropout: "embedding mask". If products have a
/// separate dtype, "embedding output" and "class rows" have the parameters', "head input" has only the class tokens in
/// both builds, and "weight casts" have K h elements. Throws ValueError as vit_options does.
Theory vit_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
