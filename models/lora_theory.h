#pragma once
// The memory of training adapters over a frozen model (nn/lora/lora.h), in closed form, for the GPT and Llama families
// in their fused builds. In addition to models/theory.h:
//
// - Parameters are the frozen base, with e bytes per element or coded for the weights of linear layers in blocks, and
//   r (in + out) elements in f32 per adapted layer. Only the latter have gradients and state.
// - Backward ends at the first adapter. Nothing before it is kept.
// - A product with a frozen weight keeps no input. A layer's input is kept for its adapter, or for another operator
//   that reads it in backward (attention, a norm, gelu, swiglu).
// - An adapter keeps r elements per position, and in 16 bits the casts of B and, if its input has a gradient, of A. Its
//   dropped input replaces the layer's input.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/core/ops/quant/weight_code.h>
#include <thimble/models/theory.h>
#include <thimble/nn/lora/lora.h>

namespace thimble::models {

/// A linear layer of a model: (in) -> (out).
struct LinearTheory {
  std::string name;  ///< in the model: "h.0.attn.c_attn"
  std::int64_t in = 0, out = 0;
  bool is_adapted = false;
};

/// The bytes of training adapters.
struct LoraTheory {
  std::int64_t base_elements = 0;
  std::int64_t base_bytes = 0;     ///< of the frozen parameters as stored
  std::int64_t decoded_bytes = 0;  ///< of the largest decoded weight: one exists at a time
  std::int64_t adapter_elements = 0;
  std::vector<LinearTheory> linears;  ///< inside blocks, in the order of construction
  std::vector<LayerTheory> layers;
  std::vector<Term> outside;

  std::int64_t adapter_bytes() const noexcept { return 4 * adapter_elements; }
  std::int64_t gradient_bytes() const noexcept { return adapter_bytes(); }
  /// With `moments` in f32: 2 for Adam.
  std::int64_t optimizer_bytes(std::int64_t moments) const noexcept { return moments * adapter_bytes(); }
  /// Bytes of a category that backward needs with `batch` samples.
  std::int64_t kept_bytes(memory::Category category, std::int64_t batch) const;
};

/// The theory of a named model with everything in `dtype` (f32, f16, bf16). Throws ValueError for another family, the
/// textbook build, a chunked head, tiled feed-forward layers, other dtypes, and a target that matches no linear layer
/// in a block.
LoraTheory lora_theory(std::string_view name, const ModelOptions& options, DType dtype, const nn::LoraOptions& lora,
                       std::optional<WeightCode> code = {});

}  // namespace thimble::models
