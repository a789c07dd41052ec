#pragma once
// Training in FP8: which layers do it, with which scales, and what falls back. Formats and scales are
// core/ops/quant/fp8.h, the operator core/ops/quant/fp8_linear.h.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/layers/fp8_recipe.h>
#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// Why a product of `in` to `out` features does not run in FP8; empty: it does. A rule of sizes alone, the same on
/// every device, so that plans agree: FP8 units multiply in steps of 16.
std::string why_not_fp8(std::int64_t in, std::int64_t out);

/// What the products of layers that run are of on a device: codes, or bf16 values, and which, and why. Neither is a
/// fallback: operands and scales are the same.
std::string fp8_products_text(memory::Device device, const Fp8Format& format);

/// Of a recipe that is strict: throws ValueError, naming the current path and `why`, unless that is empty.
void check_fp8_strict(const std::optional<Fp8Recipe>& recipe, const std::string& why);

/// "delayed, f8e4m3 forward, f8e5m2 gradients, margin 0": what a checkpoint says of a recipe, so that training does not
/// go on with another.
std::string fp8_recipe_text(const Fp8Format& format);
/// That of a model; several are joined by "; " in their order. "none": no layer runs in FP8.
std::string fp8_recipe_text(const Module& model);

class Linear;

/// A linear layer whose product is in FP8, with its state of delayed scaling in buffers: "fp8_amax", "fp8_scale",
/// "fp8_steps". Where the sizes fall back it gives the layer's result.
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
  std::string why_;  // it falls back
  bool runs_;
  memory::Device device_;
  Fp8Format format_;
  Fp8State state_;
};

/// A layer that a recipe is for and that runs in a higher precision.
struct Fp8Fallback {
  std::string path, reason;
};

/// The FP8 layers of a model that was made with a recipe.
struct Fp8Layers {
  std::vector<std::string> layers;     ///< paths of the ones in FP8
  std::vector<Fp8Fallback> fallbacks;  ///< and of those that do not, though they multiply
  std::vector<std::string> higher;     ///< paths of all other modules with parameters: they stay by design
  std::string products;                ///< fp8_products_text, where a layer runs in FP8
};
Fp8Layers fp8_layers(Module& model);

/// The fallbacks alone: what the model does in a higher precision than its recipe asks for.
std::vector<Fp8Fallback> fp8_fallbacks(Module& model);

/// "gpt.h.*.mlp.c_fc (2), gpt.wte": paths with their numbers as *, each kind once, and how many there are.
std::string fp8_paths_text(const std::vector<std::string>& paths);

}  // namespace thimble::nn
