#pragma once
// The multilayer perceptron: a flattened image, hidden layers with relu, class scores.

#include <vector>

#include <thimble/models/theory.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// The complete options. Defaults: image 28, channels 1, classes 10, two hidden layers (`layers`) of 256 (`width`).
/// Throws ValueError for options of models over text.
ModelOptions mlp_options(ModelOptions options);

/// Images (N, H, W, C) -> class scores (N, K). Its layers are fc1, fc2, ..., each with weight (O, I) and bias.
///
/// textbook: product and relu are separate operators; fused: one operator. Both give equal bits and keep equal bytes.
class Mlp final : public Model {
 public:
  /// Throws ValueError as mlp_options does.
  explicit Mlp(const ModelOptions& options = {}, const nn::TensorOptions& on = {});

  Tensor forward(const Tensor& images) override;
  Batch empty_batch(std::int64_t samples, memory::Device device) const override;
  bool is_text() const noexcept override { return false; }
  bool has_stages() const noexcept override { return true; }

 private:
  DType dtype_;
  std::vector<nn::Linear*> layers_;
};

/// Its memory in closed form (models/theory.h), for both builds. No layers. Outside: "images" and "targets" (input),
/// "relu outputs", "logits", "logsumexp". If products cast their operands, "weight casts" are of all layers but the
/// first, whose input needs no gradient. Unknown under FP8. Throws ValueError as mlp_options does.
Theory mlp_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision);

}  // namespace thimble::models
