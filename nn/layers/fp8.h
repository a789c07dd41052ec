#pragma once
// Training in FP8: layers, scales and fallbacks. Formats and scales are in core/ops/quant/fp8.h, the operator in
// core/ops/quant/fp8_linear.h.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/layers/fp8_recipe.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// The reason why a product of `in` to `out` features does not run in FP8, or "" if it does. Depends only on the sizes,
/// not on the device, so that plans agree: FP8 units multiply in steps of 16.
std::string why_not_fp8(std::int64_t in, std::int64_t out);

/// Describes whether a device multiplies FP8 codes or the bf16 values that they decode to, and why. Neither is a
/// fallback: operands and scales are equal.
std::string fp8_products_text(memory::Device device, const Fp8Format& format);

/// Throws ValueError, naming the current path and `why`, if the recipe is strict and `why` is not empty.
void check_fp8_strict(const std::optional<Fp8Recipe>& recipe, const std::string& why);

/// "delayed, f8e4m3 forward, f8e5m2 gradients, margin 0": checkpoints hold this text, so that training does not resume
/// with another recipe.
std::string fp8_recipe_text(const Fp8Format& format);
/// The texts of a model's recipes, joined by "; ", or "none" if no layer runs in FP8.
std::string fp8_recipe_text(const Module& model);

class Linear;

/// A linear layer whose product is in FP8, with the state of delayed scaling in buffers: "fp8_amax", "fp8_scale",
/// "fp8_steps". If the sizes fall back, it runs the plain layer.
class Fp8Linear final : public Layer {
 public:
  /// Throws ValueError: a strict recipe and sizes that fall back, a history or margin out of range.
  Fp8Linear(Linear& base, const TensorOptions& on);

  Fp8Status fp8_status() const override;
  std::string_view difference() const override { return runs_ ? "runs in FP8" : ""; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Linear& base_;
  std::string why_;  // reason of the fallback
  bool runs_;
  memory::Device device_;
  Fp8Format format_;
  Fp8State state_;
};

/// A layer with a recipe that runs in a higher precision.
struct Fp8Fallback {
  std::string path, reason;
};

/// The FP8 layers of a model that was made with a recipe.
struct Fp8Layers {
  std::vector<std::string> layers;     ///< paths of layers in FP8
  std::vector<Fp8Fallback> fallbacks;  ///< layers that multiply in a higher precision
  std::vector<std::string> higher;     ///< paths of other modules with parameters, by design in a higher precision
  std::string products;                ///< fp8_products_text, if a layer runs in FP8
};
Fp8Layers fp8_layers(Module& model);

/// Fp8Layers::fallbacks.
std::vector<Fp8Fallback> fp8_fallbacks(Module& model);

/// "gpt.h.*.mlp.c_fc (2), gpt.wte": paths with * for numbers, each kind once, with its count.
std::string fp8_paths_text(const std::vector<std::string>& paths);

}  // namespace thimble::nn
